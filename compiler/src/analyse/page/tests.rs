use super::*;

#[test]
fn ranges_and_runs_are_formatted_briefly() {
    assert_eq!(range([2.0, 1.0, 3.0].into_iter(), 0), "1-3");
    assert_eq!(range([1.04, 0.96].into_iter(), 1), "1.0");
    assert_eq!(range(std::iter::empty(), 2), "");
    let shorts = [0.0, 0.0012344, 29.5269, 208.2326, 123456.7, 1.5e-9].map(four_digits);
    assert_eq!(
        shorts,
        ["0", "0.001234", "29.53", "208.2", "123457", "1.500e-9"]
    );
    let mut profile = Profile {
        variance: Vec::new(),
        smoothed: Vec::new(),
        phases: Some(["mix", "mix", "compress"].map(str::to_owned).to_vec()),
        reason: None,
    };
    assert_eq!(runs(&profile), "mix 0-1, compress 2");
    profile.phases = None;
    profile.reason = Some("flat".to_owned());
    assert_eq!(runs(&profile), "none: flat");
}
