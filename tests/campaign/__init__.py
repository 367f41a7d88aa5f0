"""A campaign: random attention problems against an oracle that shares no code with sharpmax.

python -m campaign --cases 2000 --seed 1          (with tests/ on the path; `make fuzz`)
"""
