"""Does a calibration help a language model, and was it the sharpening that did it?"""
