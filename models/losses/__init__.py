"""What training minimizes (SPEC.md 10): functions of tensors, without weights, state or random draws of their own.

F films, C classes, A regions, Q prompts of any kind, R proposed boxes of a prompt, T target boxes, S sentences. Rows of
a batch that hold nothing are named by a mask and may hold any finite numbers; where a mask is empty a loss is 0 and its
gradients are 0, so that a batch without boxes or sentences does no harm.
"""
