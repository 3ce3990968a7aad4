use super::*;

fn on_cpu(arguments: &str) -> Value {
    let all: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
    run(&all, Instant::now()).unwrap()
}

#[test]
fn measure_runs_a_tiny_model_on_the_cpu() {
    let found = on_cpu(
        "measure --shape tiny --form lowrank:64:q8_0 --device cpu --threads 1 --context 8 --tokens 4 --runs 3 \
         --prefill 16 --copy-mib 4 --thrash-mib 1 --beside-mib 0,2 --sensor sim --energy-seconds 0.2",
    );
    for figure in ["decode", "decode_thrashed"] {
        assert!(
            found[figure]["tokens_per_second"]["median"]
                .as_f64()
                .unwrap()
                > 0.0
        );
        assert!(found[figure]["of_copy"].as_f64().unwrap() > 0.0);
    }
    assert!(found["prefill"]["tflops"].as_f64().unwrap() > 0.0);
    assert!(found["energy"]["joules_per_token"].as_f64().unwrap() > 0.0);
    assert_eq!(found["decode_beside"].as_array().unwrap().len(), 2);
    assert_eq!(found["decode_beside"][1]["copied_bytes"], 2 << 20);
    assert!(found["decode_beside"][1]["copies"].as_u64().unwrap() > 0);
    assert_eq!(found["options"]["form"], "lowrank:64:q8_0");
    assert_eq!(found["per_token"], Value::Null);
}

#[test]
fn projections_compare_low_rank_with_dense() {
    let found = on_cpu(
        "projections --shape tiny --form lowrank:64:q8_0 --device cpu --threads 1 --bytes-mib 1 --runs 3",
    );
    assert_eq!(found["projections"].as_array().unwrap().len(), 4);
    assert!(
        found["projections"][0]["time_ratio"]["median"]
            .as_f64()
            .unwrap()
            > 0.0
    );
}

#[test]
fn thermal_reduces_the_fraction_of_a_warm_device() {
    let found = on_cpu(
        "thermal --shape tiny --form lowrank:128:q8_0 --device cpu --threads 1 --seconds 1.5 --range 20:60 \
         --sensor sim:start=90,speed=10",
    );
    assert!(found["fractions"][0].as_f64().unwrap() < 1.0, "{found}");
    assert!(found["warmest"].as_f64().unwrap() >= 60.0);
    assert_eq!(found["course"].as_array().unwrap().len(), 1);
}

#[test]
fn make_writes_a_file_that_first_executes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tiny.gguf");
    let path = path.to_str().unwrap();
    on_cpu(&format!(
        "make --shape tiny --form dense:q8_0 --device cpu --out {path}"
    ));
    let found = on_cpu(&format!("first --model {path} --device cpu --threads 1"));
    assert!(found["seconds"]["all"].as_f64().unwrap() > 0.0);
}

fn of_script(options: &[&str]) -> Option<Vec<Vec<String>>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/bench_cuda.py");
    let mut python = std::process::Command::new("python3");
    let ended = python.args([script, "--dry-run"]).args(options).output();
    let ended = ended.ok()?;
    assert!(ended.status.success(), "{ended:?}");
    let text = String::from_utf8(ended.stdout).unwrap();
    let words = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        words.by_ref().find(|word| word.ends_with("/device"))?;
        Some(words.collect())
    };
    Some(text.lines().filter_map(words).collect())
}

/// The script needs minutes of GPU time, so this checks that all its shapes and forms can be
/// created (with one layer) and that all its options exist.
#[test]
fn commands_of_the_script_are_valid() {
    let (Some(usual), Some(compiled)) = (
        of_script(&[]),
        of_script(&["--parts", "compile", "--compile-shape", "Llama-3.1-8B"]),
    ) else {
        println!("skipped: python3 is not here");
        return;
    };
    let mut made = std::collections::BTreeSet::new();
    for mut words in usual.into_iter().chain(compiled) {
        let what = words.remove(0);
        let mut given = CommandOptions::read(&words).unwrap();
        assert_eq!(
            given.device().unwrap(),
            DeviceChoice::Cuda(DeviceSelector::Index(0))
        );
        // The emulated device needs no sensor.
        given.0.insert("device".to_owned(), "emulated".to_owned());
        match what.as_str() {
            "info" => {}
            "first" => assert!(given.parse_required::<std::path::PathBuf>("model").is_ok()),
            "measure" => assert!(given.plan().unwrap().runs > 2),
            "thermal" => assert!(given.parse_or_default("seconds", 0.0).unwrap() > 1.0),
            "make" => assert!(given.parse_required::<std::path::PathBuf>("out").is_ok()),
            "projections" => assert!(matches!(
                given.parse_required("form"),
                Ok(StorageForm::LowRank(..))
            )),
            other => panic!("{other}"),
        }
        let Some(form) = given.text("form").map(str::to_owned) else {
            continue;
        };
        let mut shape = given.shape().unwrap();
        if made.insert((shape.name, form.clone())) {
            (shape.layers, shape.vocabulary) = (1, 64);
            let random = model::random_model(
                &shape,
                form.parse().unwrap(),
                64,
                &mut MatrixGenerator::new(false),
            );
            assert!(random.is_ok(), "{} {form}: {random:?}", shape.name);
        }
    }
    assert!(made.len() > 20, "{made:?}");
}

#[test]
fn invalid_arguments_are_rejected() {
    for (arguments, why) in [
        ("", "expected measure"),
        ("measure --device cpu --shape tiny", "--form is missing"),
        (
            "measure --device cpu --form dense:f16",
            "--shape is missing",
        ),
        ("measure --depth 3", "no option"),
        ("measure --shape", "expected a value"),
        (
            "measure --device auto --shape tiny --form dense:f16",
            "by name",
        ),
        (
            "projections --device cpu --shape tiny --form dense:f16",
            "lowrank:RANK:TYPE",
        ),
        ("other", "nothing that can be done"),
    ] {
        let all: Vec<String> = arguments.split_whitespace().map(str::to_owned).collect();
        let error = run(&all, Instant::now()).unwrap_err().to_string();
        assert!(error.contains(why), "{arguments}: {error}");
    }
}
