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
mod tests;
