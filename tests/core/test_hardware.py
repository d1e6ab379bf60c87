from llmgw.core.hardware import Gpu, NodeHardware


def test_gpus_are_found_by_uuid_and_never_by_index() -> None:
    """After a reboot that renumbered them, a UUID still finds its card."""
    first, second = Gpu("GPU-a", index=1), Gpu("GPU-b", index=0)
    hardware = NodeHardware(gpus=(first, second))
    assert hardware.gpu("GPU-a") is first
    assert hardware.gpu("GPU-b") is second
    assert hardware.gpu("0") is None
