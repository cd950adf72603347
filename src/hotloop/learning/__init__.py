"""The maths of the DQN family, once, for every engine: functions of arrays, with the namespace passed in.

`xp` is any array-API namespace (jax.numpy, numpy, or torch behind array-api-compat). Suffixes name axes:
B batch, A actions. Time runs `s_tm1, a_tm1, r_t, discount_t, s_t`.
"""
