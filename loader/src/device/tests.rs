use super::*;

#[test]
fn device_names_round_trip() {
    for name in [
        "auto",
        "cpu",
        "reference",
        "cuda:0",
        "cuda:3",
        "cuda:GPU-00112233-4455-6677-8899-aabbccddeeff",
        "emulated",
    ] {
        assert_eq!(name.parse::<DeviceChoice>().unwrap().to_string(), name);
    }
    assert_eq!(
        "cuda".parse(),
        Ok(DeviceChoice::Cuda(DeviceSelector::Index(0)))
    );
    for name in [
        "",
        "gpu",
        "cuda:",
        "cuda:-1",
        "CPU",
        "cuda0",
        "cuda:GPU-00",
        "cuda:GPU-",
    ] {
        let error = name.parse::<DeviceChoice>().unwrap_err();
        assert!(
            error.starts_with("unknown device; this build has auto, cpu"),
            "{error}"
        );
    }
}

struct Name;

impl DeviceWork for Name {
    type Outcome = (String, bool);

    fn run<E: Executor>(self, executor: &E) -> (String, bool) {
        (executor.name(), executor.has_own_memory())
    }
}

#[test]
fn work_runs_on_the_requested_device() {
    let pool = Arc::new(Pool::new(1).unwrap());
    let on = |choice: DeviceChoice| choice.execute(&pool, |_| (), Name);
    assert!(
        on(DeviceChoice::Cpu)
            .unwrap()
            .0
            .starts_with("the processor (")
    );
    let float64 = ("the processor in float64".to_owned(), false);
    assert_eq!(on(DeviceChoice::Reference).unwrap(), float64);
    if cfg!(feature = "emulated") {
        assert_eq!(on(DeviceChoice::Emulated).unwrap().0, "emulated")
    } else {
        let error = on(DeviceChoice::Emulated).unwrap_err().to_string();
        assert!(error.contains("feature emulated"), "{error}");
    }
    assert!(on(DeviceChoice::Cuda(DeviceSelector::Index(4096))).is_err());
}
