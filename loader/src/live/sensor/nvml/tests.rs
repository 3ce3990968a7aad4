use super::*;

#[test]
fn missing_library_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let absent = folder.path().join("libnvidia-ml.so.1");
    let none = folder.path().join("text.so");
    std::fs::write(&none, "no library").unwrap();
    for path in [absent, none] {
        let opened = NvmlSensor::with_library(
            Some(path.as_os_str()),
            &GpuSelector::Index(0),
            Clock::manual(),
        );
        let fault = opened.unwrap_err();
        assert!(matches!(fault, LiveError::NoNvml { .. }), "{fault}");
        assert!(fault.to_string().contains("nvidia-smi works"), "{fault}");
    }
}

#[test]
fn missing_gpu_is_named_in_the_error() {
    let gpu = GpuSelector::Index(u32::MAX);
    match NvmlSensor::open(&gpu, Clock::manual()) {
        Err(LiveError::NoNvml { .. }) => eprintln!("skipped: there is no NVML here"),
        Err(LiveError::NoGpu {
            requested: asked, ..
        }) => assert_eq!(asked, gpu),
        other => panic!("{other:?}"),
    }
}
