"""Makes frameworks with a fixed list of devices use cards under their own name, ``vdev``.

Each module is for one framework, and changes nothing until it is imported. Cards that pose as CUDA need none
of them. docs/frameworks.md says what each module does.
"""
