//! Measurements of a benchmark on any device.

use std::sync::Arc;

use htc_formats::htz::KernelCode;
use htc_loader::Backend;
use htc_loader::backend::PlannedSession;
use htc_loader::device::{DeviceWork, Executor};
use htc_loader::dial::ActiveSetting;
use htc_loader::kv::KvOptions;

use super::{BenchProgress, LoadedModel, PreparedBench, WINDOW, engine_name};
use crate::app::commands::progress::{self, WINDOWS};
use crate::app::commands::{self, Failure, check_memory, evaluated, interrupted, read_corpus};
use crate::bench::energy::EnergyMeter;
use crate::bench::llama_cpp::LlamaCpp;
use crate::bench::machine::{Load, Ticks};
use crate::bench::record::{ModelRecord, Quality};
use crate::bench::runner::{InProcessRunner, Runner};
use crate::bench::{self, BenchResults, NoSensors, RunControl, Sensors, Step};
use crate::device::ExecutorDevice;
use crate::event::Cancelled;
use crate::measure::{self, Execution};
use crate::system::show::file_name;

pub(super) struct BenchWork<'b, 'a> {
    bench: &'b mut PreparedBench<'a>,
    sensor: Option<&'b mut EnergyMeter>,
}

type SubjectAndBaseline = (ModelRecord, Option<ModelRecord>);

pub(super) struct BenchOutcome {
    pub measured: BenchResults,
    pub subjects: SubjectAndBaseline,
    pub device: String,
    pub device_bytes: Option<u64>,
    pub load: Option<Load>,
    pub quality: Option<Quality>,
}

impl DeviceWork for BenchWork<'_, '_> {
    type Outcome = Result<BenchOutcome, Failure>;

    fn kernels(&self) -> Option<KernelCode> {
        self.bench.subject.model.kernels()
    }

    fn sessions(&self) -> Vec<PlannedSession<'_>> {
        let (bench, args) = (&self.bench, self.bench.args);
        let (positions, kind) = (bench.positions.max(WINDOW), args.kv.kv_type.into());
        let planned = |model| PlannedSession {
            model,
            positions,
            kind,
        };
        match args.text {
            // For comparison.
            Some(_) => bench.models().map(|of| planned(&*of.model)).collect(),
            None => bench
                .executed_models()
                .map(|of| planned(&*of.model))
                .collect(),
        }
    }

    fn run<E: Executor>(mut self, executor: &E) -> Self::Outcome {
        if !executor.has_own_memory() {
            let (bench, args) = (&self.bench, self.bench.args);
            let sessions = bench.models().map(|loaded| PlannedSession {
                model: &loaded.model,
                positions: bench.positions,
                kind: args.kv.kv_type.into(),
            });
            let sessions: Vec<_> = sessions.collect();
            check_memory(&bench.subject.path, &sessions, args.threads.count())?;
        }
        let ticks = Ticks::now();
        let (measured, both, device_bytes) = self.measure(executor)?;
        let load = ticks.and_then(Ticks::since);
        self.bench.notes.extend(executor.remark());
        Ok(BenchOutcome {
            measured,
            subjects: both,
            device: executor.name(),
            device_bytes,
            load,
            quality: self.quality(executor)?,
        })
    }
}

impl<'b, 'a> BenchWork<'b, 'a> {
    pub fn new(bench: &'b mut PreparedBench<'a>, sensor: Option<&'b mut EnergyMeter>) -> Self {
        BenchWork { bench, sensor }
    }

    fn in_process_runner<E: Executor>(
        &self,
        executor: &E,
        loaded: &LoadedModel,
        setting: ActiveSetting,
    ) -> Result<InProcessRunner<E::Backend>, Failure> {
        let model = commands::loaded(&loaded.path, executor.load(&loaded.model))?;
        let (name, tokenizer) = (loaded.name.clone(), loaded.tokenizer.clone());
        Ok(InProcessRunner::new(
            name,
            &model,
            tokenizer,
            executor.backend(),
            self.bench.positions,
            self.bench.args.kv.kv_type,
            setting,
        )?)
    }

    fn measure<E: Executor>(
        &mut self,
        executor: &E,
    ) -> Result<(BenchResults, SubjectAndBaseline, Option<u64>), Failure> {
        let free = executor.free_bytes();
        let mut own = self.in_process_runner(executor, &self.bench.subject, self.bench.setting)?;
        let mut of_subject = self.bench.subject.measuree(engine_name());
        let model = Arc::clone(&self.bench.subject.model);
        let dial = model.dial();
        if self.bench.args.fraction.is_some() {
            of_subject.fraction = Some(dial.fraction(self.bench.setting));
        }
        of_subject.touched_bytes = Some(dial.active_bytes(self.bench.setting));
        let mut other =
            match &self.bench.baseline {
                None => BaselineRunner::None,
                Some((loaded, None)) => BaselineRunner::InProcess(Box::new(
                    self.in_process_runner(executor, loaded, ActiveSetting::FULL)?,
                )),
                Some((loaded, Some(program))) => {
                    let found = self.bench.llama_cpp(loaded, program);
                    BaselineRunner::LlamaCpp(Box::new(
                        found.map_err(|error| interrupted(error, &self.bench.interrupt))?,
                    ))
                }
            };
        if let BaselineRunner::LlamaCpp(peer) = &other {
            self.add_llama_cpp_notes(peer, executor);
        }
        let progress = BenchProgress::new();
        let tell = |step: Step| progress.show(step);
        let control = RunControl {
            report: &tell,
            cancel: self.bench.interrupt.cancel(),
        };
        let mut none = NoSensors;
        let sensors: &mut dyn Sensors = match &mut self.sensor {
            Some(sensor) => {
                sensor.set_fractions(dial.fraction(self.bench.setting), 1.0);
                &mut **sensor
            }
            None => &mut none,
        };
        let found = bench::run(
            &mut own,
            other.runner(),
            &self.bench.protocol,
            control,
            sensors,
        );
        progress.0.finish_and_clear();
        let found = found.map_err(|error| interrupted(error, &self.bench.interrupt))?;
        let taken = free.zip(executor.free_bytes());
        let taken = taken.map(|(before, behind)| before.saturating_sub(behind));
        if let Some(sensor) = &self.sensor {
            self.bench.notes.extend(sensor.notes(&found));
        }
        let engine = match &other {
            BaselineRunner::LlamaCpp(peer) => {
                format!(
                    "llama.cpp {}",
                    peer.build().unwrap_or("of an unknown build")
                )
            }
            _ => engine_name(),
        };
        let of_baseline = self
            .bench
            .baseline
            .as_ref()
            .map(|(loaded, program)| ModelRecord {
                touched_bytes: match program {
                    None => Some(loaded.model.dial().active_bytes(ActiveSetting::FULL)),
                    Some(_) => None,
                },
                ..loaded.measuree(engine)
            });
        Ok((found, (of_subject, of_baseline), taken))
    }

    fn add_llama_cpp_notes(&mut self, peer: &LlamaCpp, executor: &impl Executor) {
        let notes = &mut self.bench.notes;
        if !peer.has_depth() {
            notes.push(
                "this llama-bench knows no depth (-d): it decodes from an empty context, not behind what was read"
                    .into(),
            );
        }
        if executor.has_own_memory() {
            notes.push(format!(
                "llama-bench computes on the processor (-ngl 0), htc on {}: the ratios are of two machines",
                executor.name()
            ));
        }
        if let Some(sensor) = &self.sensor {
            notes.push(format!(
                "llama-bench loads the model in every run, so that its joules are not those of the task: {} measures none of it",
                sensor.name()
            ));
        }
    }

    fn quality<E: Executor>(&self, executor: &E) -> Result<Option<Quality>, Failure> {
        let (Some(path), Some((baseline, _))) = (&self.bench.args.text, &self.bench.baseline)
        else {
            return Ok(None);
        };
        let text = read_corpus(path)?;
        let (subject, cancel) = (&self.bench.subject, self.bench.interrupt.cancel());
        let bar = progress::bar(WINDOWS);
        let evaluation = measure::evaluate(
            &ExecutorDevice::new(executor, &self.bench.pool),
            &subject.model,
            &subject.tokenizer,
            Some((&baseline.model, &baseline.tokenizer)),
            &text,
            measure::Protocol {
                context: WINDOW.min(subject.context()),
                chunks: self.bench.args.chunks.map(|n| n as usize),
                execution: Execution {
                    kv: KvOptions::new(self.bench.args.kv.kv_type),
                    setting: self.bench.setting,
                },
            },
            |done, all| {
                bar.set_length(all as u64);
                bar.set_position(done as u64);
                if cancel.is_cancelled() {
                    Err(Cancelled)
                } else {
                    Ok(())
                }
            },
        );
        bar.finish_and_clear();
        let evaluation = evaluated(evaluation, [&subject.path, &baseline.path, path])
            .map_err(|error| interrupted(error, &self.bench.interrupt))?;
        let text = file_name(path);
        Ok(Some(Quality { text, evaluation }))
    }
}

enum BaselineRunner<B: Backend> {
    None,
    InProcess(Box<InProcessRunner<B>>),
    LlamaCpp(Box<LlamaCpp>),
}

impl<B: Backend> BaselineRunner<B> {
    fn runner(&mut self) -> Option<&mut dyn Runner> {
        match self {
            BaselineRunner::None => None,
            BaselineRunner::InProcess(own) => Some(&mut **own),
            BaselineRunner::LlamaCpp(peer) => Some(&mut **peer),
        }
    }
}
