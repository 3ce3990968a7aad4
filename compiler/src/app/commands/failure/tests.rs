use super::*;
use crate::choose::TrialError;

#[test]
fn number_outside_the_kv_cache_names_the_option_of_commands_that_have_it() {
    let range = || ExecError::KvRange {
        layer: 1,
        side: "key",
        position: 2,
        value: 70000.0,
    };
    let path = PathBuf::from("a.gguf");
    let failures: [Failure; 3] = [
        PassError::Evaluate(range()).into(),
        PassError::Reference(range()).into(),
        range().into(),
    ];
    let failures = failures.map(|failure| Err::<(), _>(failure).in_file(&path).unwrap_err());
    let bench = Failure::Bench(BenchError::Generate {
        model: "a.gguf".into(),
        error: range(),
    });
    for failure in failures.into_iter().chain([bench]) {
        let reason = failure.reason();
        assert!(reason.starts_with("a.gguf: layer 1: a number of the key at position 2 is 70000"));
        assert!(
            reason.ends_with("keep the KV cache in float32 (--kv f32)"),
            "{reason}"
        );
    }
    let trial = TrialError::Pass(PassError::Evaluate(range()));
    let reason = Failure::Compile(trial.into()).reason();
    assert!(reason.ends_with("with its author's digest"), "{reason}");
}
