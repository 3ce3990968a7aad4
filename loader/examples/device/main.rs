//! Device benchmarks with randomly initialised models: time per token, and the share of memory
//! bandwidth used.
//!
//! ```text
//! device measure --shape NAME --form FORM [--device cuda:0|cpu|emulated] [OPTION VALUE ...]
//! device projections --shape NAME --form lowrank:RANK:TYPE ...   low-rank against dense projections of the same size
//! device thermal --shape NAME --form FORM [--seconds S] [--sensor SPEC] [--range LOW:HIGH] ...
//! device make    --shape NAME --form dense:TYPE --out FILE.gguf
//! device first   --model FILE ...                            time from a file to the first token
//! device info    [--device ...]                              properties of the device
//! ```
//!
//! Prints JSON to standard output. Shapes are tiny, SmolLM2-135M, Llama-3.2-1B and Llama-3.1-8B;
//! `--layers N` and `--vocabulary N` override their values. Forms are dense:TYPE,
//! lowrank:RANK:TYPE, basis:RANK:TYPE, grc:RANK:TYPE, levels:BITS, trellis:BITS and planes:BITS.
//! `--thrash-mib N` adds runs in which the caches are evicted before each token, `--beside-mib
//! N,N,...` runs with concurrent copies of that size.

mod figures;
#[cfg(any(feature = "cuda", feature = "emulated"))]
mod gpu;
mod measure;
mod model;
mod on;
mod projections;
mod shape;
mod thermal;

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use htc_formats::source::ModelFile;
use htc_loader::device::{DeviceChoice, DeviceSelector};
use htc_loader::live::SensorSpec;
use htc_loader::{Model, Pool};
use serde_json::{Value, json};

use measure::{BenchmarkSettings, FirstTokenTask, MeasureTask};
use model::MatrixGenerator;
use on::{BenchmarkExecutor, Outcome, Task, run_on_device};
use projections::ProjectionsTask;
use shape::{Shape, StorageForm};
use thermal::ThermalTask;

const OPTIONS: &str = "shape form layers vocabulary device threads context tokens runs seconds prefill copy-mib thrash-mib beside-mib \
     sensor energy-seconds range bytes-mib out model";

const MIB: usize = 1 << 20;

fn main() -> ExitCode {
    let began = Instant::now();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments, began) {
        Ok(found) => {
            println!("{found:#}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

struct CommandOptions(BTreeMap<String, String>);

impl CommandOptions {
    fn read(arguments: &[String]) -> Outcome<CommandOptions> {
        let mut all = BTreeMap::new();
        let (pairs, rest) = arguments.as_chunks::<2>();
        for [name, value] in pairs {
            let known = name.strip_prefix("--");
            let known = known.filter(|name| OPTIONS.split_whitespace().any(|known| known == *name));
            let known = known.ok_or_else(|| format!("{name}: no option; there are {OPTIONS}"))?;
            all.insert(known.to_owned(), value.clone());
        }
        match rest {
            [] => Ok(CommandOptions(all)),
            [name] => Err(format!("{name}: expected a value behind it").into()),
            _ => Err("expected pairs of option and value".into()),
        }
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn parse_optional<T: FromStr<Err: ToString>>(&self, name: &str) -> Outcome<Option<T>> {
        let parsed = self.text(name).map(str::parse::<T>).transpose();
        Ok(parsed.map_err(|error| format!("--{name}: {}", error.to_string()))?)
    }

    fn parse_or_default<T: FromStr<Err: ToString>>(&self, name: &str, usual: T) -> Outcome<T> {
        Ok(self.parse_optional(name)?.unwrap_or(usual))
    }

    fn parse_required<T: FromStr<Err: ToString>>(&self, name: &str) -> Outcome<T> {
        Ok(self
            .parse_optional(name)?
            .ok_or_else(|| format!("--{name} is missing"))?)
    }

    fn parse_mib_list(&self, name: &str) -> Outcome<Vec<usize>> {
        let mut all = Vec::new();
        for number in self.text(name).unwrap_or("").split_terminator(',') {
            let wrong = |error| format!("--{name} {number}: {error}");
            all.push(number.parse::<usize>().map_err(wrong)? * MIB);
        }
        Ok(all)
    }

    fn device(&self) -> Outcome<DeviceChoice> {
        self.parse_or_default("device", DeviceChoice::Cuda(DeviceSelector::Index(0)))
    }

    fn shape(&self) -> Outcome<Shape> {
        let shape: Shape = self.parse_required("shape")?;
        let layers = self.parse_or_default("layers", shape.layers)?;
        let vocabulary = self
            .parse_or_default("vocabulary", shape.vocabulary)?
            .max(3);
        Ok(Shape {
            layers,
            vocabulary,
            ..shape
        })
    }

    fn pool(&self) -> Outcome<Arc<Pool>> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Arc::new(Pool::new(
            self.parse_or_default("threads", cores)?,
        )?))
    }

    /// Creates a model with random weights. Each matrix has separate data if weights are read from
    /// host memory.
    fn random_model(&self, positions: usize) -> Outcome<ModelFile> {
        let here = matches!(self.device()?, DeviceChoice::Cpu | DeviceChoice::Reference);
        let mut maker = MatrixGenerator::new(here);
        model::random_model(
            &self.shape()?,
            self.parse_required("form")?,
            positions,
            &mut maker,
        )
    }

    fn sensor(&self) -> Outcome<Option<SensorSpec>> {
        let sensor = self.parse_optional::<SensorSpec>("sensor")?;
        let of_device = match self.device()? {
            DeviceChoice::Cuda(_) => nvml_sensor(self.device()?)?,
            _ => None,
        };
        Ok(sensor.or(of_device))
    }

    fn plan(&self) -> Outcome<BenchmarkSettings> {
        Ok(BenchmarkSettings {
            context: self.parse_or_default("context", 128)?,
            tokens: self.parse_or_default("tokens", 64)?.max(1),
            runs: self.parse_or_default("runs", 15)?,
            seconds: self.parse_or_default("seconds", 3.0)?,
            prefill: self.parse_or_default("prefill", 512)?,
            copy_bytes: self.parse_or_default("copy-mib", 1024)? * MIB,
            thrash_bytes: self.parse_or_default("thrash-mib", 0)? * MIB,
            concurrent_copy_bytes: self.parse_mib_list("beside-mib")?,
            sensor: self.sensor()?,
            energy_seconds: self.parse_or_default("energy-seconds", 2.0)?,
        })
    }
}

/// Returns the sensor of a GPU by UUID, because NVML and CUDA number devices differently.
#[cfg(feature = "cuda")]
fn nvml_sensor(choice: DeviceChoice) -> Outcome<Option<SensorSpec>> {
    let DeviceChoice::Cuda(which) = choice else {
        return Ok(None);
    };
    let all = htc_loader::backend::CudaDevice::devices()?;
    let found = all.iter().find(|found| match which {
        DeviceSelector::Index(index) => found.index == index,
        DeviceSelector::Uuid(uuid) => found.uuid == uuid,
    });
    let text = found.map(|found| format!("nvml:{}", found.uuid_string()));
    Ok(text.map(|text| text.parse()).transpose()?)
}

#[cfg(not(feature = "cuda"))]
fn nvml_sensor(_: DeviceChoice) -> Outcome<Option<SensorSpec>> {
    Ok(None)
}

struct Info;

impl Task for Info {
    fn run<M: BenchmarkExecutor>(self, on: &M) -> Outcome<Value> {
        Ok(json!({ "device": on.device() }))
    }
}

fn run(arguments: &[String], began: Instant) -> Outcome<Value> {
    let Some((what, rest)) = arguments.split_first() else {
        return Err("expected measure, projections, thermal, make, first or info".into());
    };
    let given = CommandOptions::read(rest)?;
    let (device, pool) = (given.device()?, given.pool()?);
    let mut found = match what.as_str() {
        "info" => run_on_device(device, &pool, None, Info)?,
        "make" => {
            let path: std::path::PathBuf = given.parse_required("out")?;
            model::write_gguf(
                &given.random_model(given.parse_or_default("context", 2048)?)?,
                &path,
            )?;
            json!({ "path": path, "bytes": std::fs::metadata(&path)?.len() })
        }
        "first" => {
            let path: std::path::PathBuf = given.parse_required("model")?;
            let sealed = Model::open(&path)?.kernels();
            run_on_device(
                device,
                &pool,
                sealed.as_ref(),
                FirstTokenTask {
                    path,
                    program_start: began,
                },
            )?
        }
        "measure" => {
            let plan = given.plan()?;
            let file = given.random_model(plan.positions())?;
            run_on_device(device, &pool, None, MeasureTask { plan, file })?
        }
        "projections" => {
            let (rank, dtype) = match given.parse_required("form")? {
                StorageForm::LowRank(rank, dtype) => (rank, dtype),
                _ => return Err("projections requires --form lowrank:RANK:TYPE".into()),
            };
            let (shape, bytes) = (
                given.shape()?,
                given.parse_or_default("bytes-mib", 512)? * MIB,
            );
            let runs = given.parse_or_default("runs", 15)?;
            run_on_device(
                device,
                &pool,
                None,
                ProjectionsTask {
                    shape,
                    rank,
                    dtype,
                    bytes,
                    runs,
                },
            )?
        }
        "thermal" => {
            let range = given.text("range").map(parse_range).transpose()?;
            let (file, seconds) = (
                given.random_model(512)?,
                given.parse_or_default("seconds", 60.0)?,
            );
            let no_sensor = "--sensor is missing, and the device has none of its own";
            let sensor = given.sensor()?.ok_or(no_sensor)?;
            run_on_device(
                device,
                &pool,
                None,
                ThermalTask {
                    file,
                    sensor,
                    seconds,
                    range,
                },
            )?
        }
        other => return Err(format!("{other}: nothing that can be done here").into()),
    };
    found["what"] = what.as_str().into();
    for (name, value) in &given.0 {
        found["options"][name] = value.as_str().into();
    }
    Ok(found)
}

fn parse_range(text: &str) -> Outcome<[f64; 2]> {
    let wrong = || format!("--range {text}: expected LOW:HIGH in degrees Celsius");
    let (low, high) = text.split_once(':').ok_or_else(wrong)?;
    Ok([low.parse()?, high.parse()?])
}

#[cfg(test)]
mod tests {
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
}
