//! Measurement of decoding at batch size 1 and of prefill.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use htc_formats::source::ModelFile;
use htc_loader::live::{
    ControlLaw, ControlLawOptions, Energy, EnergyPhase, Governor, GovernorOptions, SharedFraction,
};
use htc_loader::live::{SensorSpec, open_sensor};
use htc_loader::sampling::LogitsRequest;
use htc_loader::{Backend, Model, Session};
use serde_json::{Value, json};

use super::figures::Median;
use super::model::{Random, projection_parameters};
use super::on::{BackgroundLoad, BenchmarkExecutor, CopyFn, Outcome, Task};

/// Benchmark settings.
#[derive(Clone, Debug)]
pub struct BenchmarkSettings {
    pub context: usize,
    /// Tokens per run.
    pub tokens: usize,
    /// Maximum number of runs and their total time in seconds; at least three runs are made.
    pub runs: usize,
    pub seconds: f64,
    pub prefill: usize,
    /// Bytes of the copy that measures the bandwidth; 0 to skip.
    pub copy_bytes: usize,
    /// Bytes copied before each token to evict the caches, in extra runs; 0 to skip.
    pub thrash_bytes: usize,
    /// Bytes copied concurrently, one series of runs for each size.
    pub concurrent_copy_bytes: Vec<usize>,
    /// Sensor for the energy measurement, and its duration in seconds.
    pub sensor: Option<SensorSpec>,
    pub energy_seconds: f64,
}

impl BenchmarkSettings {
    /// Returns the positions that a session needs.
    pub fn positions(&self) -> usize {
        (self.context + self.tokens + 1).max(self.prefill + 1)
    }

    /// Repeats a measurement `runs` times; stops earlier after `seconds`, but not before three
    /// runs.
    fn repeat(&self, mut once: impl FnMut() -> Outcome<f64>) -> Outcome<Option<Median>> {
        let (started, mut found) = (Instant::now(), Vec::new());
        while found.len() < self.runs
            && (found.len() < 3 || started.elapsed().as_secs_f64() < self.seconds)
        {
            found.push(once()?);
        }
        Ok(Median::from_values(found))
    }
}

/// A model to be measured.
pub struct MeasureTask {
    pub plan: BenchmarkSettings,
    pub file: ModelFile,
}

/// Logits requested per token: the most likely one only, as in greedy decoding. Copying all of them
/// to the host is not part of decoding.
pub const LOGITS_REQUEST: LogitsRequest = LogitsRequest::TopK(1);

/// Returns distinct input tokens; their values do not matter.
pub fn tokens(vocabulary: usize, count: usize) -> Vec<u32> {
    let mut random = Random(7);
    (0..count).map(|_| random.token(vocabulary)).collect()
}

/// Loads the model and returns it with the load time in seconds.
pub fn load_timed<M: BenchmarkExecutor>(
    on: &M,
    file: ModelFile,
    positions: usize,
) -> Outcome<(Arc<Model<M::Backend>>, f64)> {
    let model = Arc::new(Model::bind(file)?);
    on.check_memory(&model, positions)?;
    let started = Instant::now();
    let model = on.load(&model)?;
    Ok((model, started.elapsed().as_secs_f64()))
}

impl Task for MeasureTask {
    fn run<M: BenchmarkExecutor>(self, on: &M) -> Outcome<Value> {
        let MeasureTask { plan, file } = self;
        let copy = match plan.copy_bytes {
            0 => None,
            bytes => on.copy_rate(bytes)?,
        };
        let (operations, weights) = (2 * projection_parameters(&file), file.tensor_bytes());
        let (model, upload) = load_timed(on, file, plan.positions())?;
        let mut session = Session::new(Arc::clone(&model), on.backend(), plan.positions())?;
        let touched = model.dial().active_bytes(session.setting());

        let mut decode = DecodeBenchmark::new(&mut session, &plan)?;
        let (launches, steps) = (on.launches(), on.steps());
        decode.run(&mut None)?;
        let per_token = per_token(launches, on.launches(), plan.tokens);
        let plain = decode.runs(&mut None)?;
        let steps = counter_differences(&steps, &on.steps());
        let thrashed = match plan.thrash_bytes {
            0 => None,
            bytes => decode.runs(&mut Some(on.cache_evictor(bytes)?))?,
        };
        let mut beside = Vec::new();
        for &copied in &plan.concurrent_copy_bytes {
            beside.push((copied, decode.runs_with_copies(on, copied)?));
        }
        let energy = match &plan.sensor {
            Some(sensor) if plan.energy_seconds > 0.0 => decode.energy(sensor)?,
            _ => Value::Null,
        };
        let kv = session.kv_usage().bytes_per_position * (plan.context + plan.tokens / 2);
        let prefill = prefill(&mut session, &plan, operations)?;
        let bytes = touched + kv as u64;
        let of = |speed: Option<Median>| speed_of(speed, bytes, copy);
        let beside = beside.into_iter().map(|(copied, (speed, copies))| {
            json!({ "copied_bytes": copied, "copies": copies, "speed": of(speed) })
        });
        let beside: Vec<Value> = beside.collect();
        Ok(json!({
            "device": on.device(),
            "weight_bytes": weights,
            "token_bytes": { "weights": touched, "kv": kv },
            "copy_bytes_per_second": copy,
            "context": plan.context,
            "upload": { "seconds": upload, "bytes_per_second": weights as f64 / upload },
            "decode": of(plain),
            "decode_thrashed": of(thrashed),
            "decode_beside": beside,
            "per_token": per_token,
            "steps": steps,
            "prefill": prefill,
            "energy": energy,
        }))
    }
}

fn speed_of(speed: Option<Median>, bytes: u64, copy: Option<f64>) -> Value {
    let Some(speed) = speed else {
        return Value::Null;
    };
    let rate = speed.median * bytes as f64;
    json!({
        "tokens_per_second": speed,
        "bytes_per_second": rate,
        "of_copy": copy.map(|copy| rate / copy),
    })
}

fn per_token(before: Option<[u64; 2]>, after: Option<[u64; 2]>, tokens: usize) -> Value {
    let (Some(before), Some(after)) = (before, after) else {
        return Value::Null;
    };
    let each = |i: usize| (after[i] - before[i]) as f64 / tokens as f64;
    json!({ "launches": each(0), "copies": each(1) })
}

fn counter_differences(before: &Value, after: &Value) -> Value {
    let Some(after) = after.as_object() else {
        return Value::Null;
    };
    let added = after.iter().map(|(name, count)| {
        let added = count.as_u64().unwrap_or(0) - before[name].as_u64().unwrap_or(0);
        (name.clone(), added.into())
    });
    Value::Object(added.collect())
}

struct DecodeBenchmark<'a, B: Backend> {
    session: &'a mut Session<B>,
    plan: &'a BenchmarkSettings,
    tokens: Vec<u32>,
}

impl<'a, B: Backend> DecodeBenchmark<'a, B> {
    fn new(session: &'a mut Session<B>, plan: &'a BenchmarkSettings) -> Outcome<Self> {
        let vocabulary = session.model().hyper().vocabulary;
        session.reset();
        if plan.context > 0 {
            session.read_prompt(&tokens(vocabulary, plan.context))?;
        }
        let tokens = tokens(vocabulary, plan.tokens);
        let mut decode = DecodeBenchmark {
            session,
            plan,
            tokens,
        };
        // Warm-up: allocates buffers and creates graphs.
        decode.run(&mut None)?;
        Ok(decode)
    }

    /// Returns tokens per second of one run, without the time of cache eviction.
    fn run(&mut self, thrash: &mut Option<CopyFn>) -> Outcome<f64> {
        self.session.truncate(self.plan.context)?;
        let mut seconds = 0.0;
        for &token in &self.tokens {
            if let Some(thrash) = thrash {
                thrash()?;
            }
            let started = Instant::now();
            black_box(self.session.step_for(&[token], LOGITS_REQUEST)?);
            seconds += started.elapsed().as_secs_f64();
        }
        Ok(self.tokens.len() as f64 / seconds)
    }

    fn runs(&mut self, thrash: &mut Option<CopyFn>) -> Outcome<Option<Median>> {
        let plan = self.plan;
        plan.repeat(|| self.run(thrash))
    }

    fn runs_with_copies<M: BenchmarkExecutor>(
        &mut self,
        on: &M,
        bytes: usize,
    ) -> Outcome<(Option<Median>, u64)> {
        if bytes == 0 {
            return Ok((self.runs(&mut None)?, 0));
        }
        let beside = BackgroundLoad::start(on.background_copy(bytes)?)?;
        let found = self.runs(&mut None);
        let copies = beside.stop()?;
        Ok((found?, copies))
    }

    fn energy(&mut self, sensor: &SensorSpec) -> Outcome<Value> {
        let law = ControlLaw::new(ControlLawOptions {
            thermal: false,
            ..ControlLawOptions::default()
        })?;
        let follow = SharedFraction::new();
        let sensor = match open_sensor(sensor, &follow) {
            Ok(sensor) => sensor,
            Err(error) => return Ok(json!({ "missing": error.to_string() })),
        };
        let options = GovernorOptions {
            interval: Duration::from_millis(100).max(sensor.info().min_interval),
            ..GovernorOptions::default()
        };
        let governor = Governor::start(sensor, law, options, &follow, |_| ())?;
        let (started, mut count) = (Instant::now(), 0);
        governor.enter_phase(EnergyPhase::Work)?;
        while started.elapsed().as_secs_f64() < self.plan.energy_seconds {
            self.run(&mut None)?;
            count += self.tokens.len();
        }
        governor.enter_phase(EnergyPhase::Other)?;
        Ok(energy_per_token(governor.stop()?, count as u64))
    }
}

/// Returns joules per token.
pub fn energy_per_token(energy: Option<Energy>, tokens: u64) -> Value {
    match energy {
        None => json!({ "missing": "the sensor knows no power" }),
        Some(energy) => json!({
            "joules": energy.joules,
            "seconds": energy.seconds,
            "tokens": tokens,
            "source": energy.source,
            "joules_per_token": energy.tokens_per_joule(tokens).map(f64::recip),
        }),
    }
}

fn prefill<B: Backend>(
    session: &mut Session<B>,
    plan: &BenchmarkSettings,
    operations: u64,
) -> Outcome<Value> {
    if plan.prefill == 0 {
        return Ok(Value::Null);
    }
    let tokens = tokens(session.model().hyper().vocabulary, plan.prefill);
    let mut once = || {
        session.reset();
        let started = Instant::now();
        session.read_prompt(&tokens)?;
        black_box(session.last_logits_for(LOGITS_REQUEST)?);
        Ok(tokens.len() as f64 / started.elapsed().as_secs_f64())
    };
    once()?;
    let Some(speed) = plan.repeat(once)? else {
        return Ok(Value::Null);
    };
    Ok(json!({
        "tokens": plan.prefill,
        "tokens_per_second": speed,
        "operations_per_token": operations,
        "tflops": speed.median * operations as f64 / 1e12,
    }))
}

/// Time from a file to the first token.
pub struct FirstTokenTask {
    pub path: std::path::PathBuf,
    pub program_start: Instant,
}

impl Task for FirstTokenTask {
    fn run<M: BenchmarkExecutor>(self, on: &M) -> Outcome<Value> {
        let since = || self.program_start.elapsed().as_secs_f64();
        let device = since();
        let file = ModelFile::open(&self.path)?;
        let bytes = file.tensor_bytes();
        let model = Arc::new(Model::bind(file)?);
        let opened = since();
        on.check_memory(&model, 16)?;
        let model = on.load(&model)?;
        let loaded = since();
        let mut session = Session::new(model, on.backend(), 16)?;
        black_box(session.step_for(&[1], LOGITS_REQUEST)?);
        let first = since();
        black_box(session.step_for(&[2], LOGITS_REQUEST)?);
        Ok(json!({
            "device": on.device(),
            "bytes": bytes,
            "seconds": {
                "device": device,
                "open": opened - device,
                "load": loaded - opened,
                "token": first - loaded,
                "all": first,
                "second_token": since() - first,
            },
        }))
    }
}

#[cfg(test)]
mod tests;
