"""Who does the array maths: networks, gradients, optimiser steps."""
