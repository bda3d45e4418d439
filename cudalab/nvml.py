"""Power, temperature and throttle reasons of a device through NVML; where nvidia-ml-py or the library is missing, that is said."""

import functools

REASONS = {0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost", 0x20: "thermal (software)",
           0x40: "thermal (hardware)", 0x80: "power brake", 0x100: "display clocks"}  # nvml.h, nvmlClocksEventReason*; 0x1 is idle


class Monitor:
    """Samples one device, found by its PCI address.  missing: None, or why nothing can be sampled."""

    def __init__(self, pci_bus_id: str):
        self.missing, self.driver, self._samples = None, None, []
        try:
            import pynvml
        except ImportError:
            self.missing = "power, temperature and throttling are not recorded: pip install nvidia-ml-py"
            return
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id)
            self.driver = _text(pynvml.nvmlSystemGetDriverVersion())
        except pynvml.NVMLError as error:
            self.missing = f"power, temperature and throttling are not recorded: NVML says {error}"

    def sample(self) -> None:
        """Take one sample; call it while the device works."""
        if not self.missing:
            nvml = self._nvml
            self._samples.append((self._read(nvml.nvmlDeviceGetPowerUsage), self._read(nvml.nvmlDeviceGetTemperature, 0),
                                  self._read(nvml.nvmlDeviceGetCurrentClocksEventReasons)))

    def summary(self) -> dict:
        """power_w, temperature_c (the largest seen), throttle (the reasons seen); starts afresh.

        NVML averages power over about a second, so it reads low for what takes less.  A figure that the device does not give is
        None; throttle is [] where nothing throttled.
        """
        samples, self._samples = self._samples, []
        power, temperature, reasons = ([v for v in column if v is not None] for column in (zip(*samples) if samples else ((), (), ())))
        bits = functools.reduce(int.__or__, reasons, 0)
        return dict(power_w=max(power) / 1000 if power else None, temperature_c=max(temperature) if temperature else None,
                    throttle=sorted(name for bit, name in REASONS.items() if bits & bit) if reasons else None)

    def _read(self, function, *more):
        try:
            return int(function(self._handle, *more))
        except self._nvml.NVMLError:
            return None


def _text(value) -> str:
    return value.decode() if isinstance(value, bytes) else value
