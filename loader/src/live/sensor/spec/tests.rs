use super::*;

#[test]
fn specifications_round_trip() {
    for (text, written) in [
        ("nvml", "nvml:0"),
        ("nvml:3", "nvml:3"),
        ("nvml:GPU-1b2c-9", "nvml:GPU-1b2c-9"),
        ("hwmon", "hwmon"),
        ("trace:a,b=1:c.csv", "trace:a,b=1:c.csv"),
        ("trace:t.csv,speed=2.5", "trace:t.csv,speed=2.5"),
        ("sim", "sim"),
        ("sim:full=200,ambient=-3.5", "sim:ambient=-3.5,full=200"),
        ("sim:speed=10", "sim:speed=10"),
    ] {
        let spec: SensorSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), written);
        assert_eq!(written.parse::<SensorSpec>().unwrap(), spec);
    }
}

#[test]
fn errors_list_the_allowed_values() {
    for (text, said) in [
        ("", "trace:FILE"),
        ("nmvl", "hwmon"),
        ("nvml:", "GPU-UUID"),
        ("nvml:-1", "GPU-UUID"),
        ("nvml:+1", "GPU-UUID"),
        ("nvml:4294967296", "GPU-UUID"),
        ("nvml:GPU-", "GPU-UUID"),
        ("nvml:MIG-1", "GPU-UUID"),
        ("nvml:GPU-\u{1b}[2J", "GPU-UUID"),
        ("hwmon:0", "no parameters"),
        ("trace", "trace:FILE"),
        ("trace:", "no file"),
        ("trace:,speed=1", "no file"),
        ("trace:a,speed=0", "above 0"),
        ("trace:a,speed=nan", "above 0"),
        ("trace:a,speed=inf", "at most"),
        ("sim:heat=1", "ambient, "),
        ("sim:full", "KEY=VALUE"),
        ("sim:full=1,full=2", "twice"),
        ("sim:full=x", "full"),
        ("sim:full=NaN", "full"),
        ("sim:idle=100,full=50", "at least the idle"),
        ("sim:speed=1e9", "at most"),
    ] {
        let fault = text.parse::<SensorSpec>().unwrap_err().to_string();
        assert!(fault.contains(said), "{text}: {fault}");
        assert!(!fault.contains('\u{1b}'), "{fault}");
    }
    let long = format!("nvml:GPU-{}", "1".repeat(200));
    assert!(long.parse::<SensorSpec>().is_err());
}

proptest::proptest! {
    #[test]
    fn accepted_specifications_round_trip(text in "(nvml|hwmon|trace|sim)?[:,=a-zA-Z0-9. -]{0,40}") {
        if let Ok(spec) = text.parse::<SensorSpec>() {
            let written = spec.to_string();
            proptest::prop_assert_eq!(written.parse::<SensorSpec>().unwrap(), spec);
        }
    }
}
