"""Ways to compute attention. They differ in speed and in what they can serve, never in meaning.

Each module has three functions:

    unsupported(problem, policy, detach_temperature) -> why it cannot serve, or None
    attend(problem, policy, detach_temperature) -> (output, statistics)
    measure(problem) -> statistics

The reference has a fourth, `attend_normalised(problem, normaliser) -> output`.
"""
