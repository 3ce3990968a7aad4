//! `htc bench`.

mod measuring;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use htc_formats::map::MappedFile;
use htc_loader::device::DeviceChoice;
use htc_loader::dial::ActiveSetting;
use htc_loader::live::SensorSpec;
use htc_loader::tokenizer::Tokenizer;
use htc_loader::{Model, Pool};
use indicatif::ProgressBar;

use super::{
    Failure, Opened, on_device, open_container, open_model, open_tokenizer, print_json, progress,
    report, setting_for_fraction,
};
use crate::app::chat::date;
use crate::app::cli::{Baseline, BenchArgs, Contexts, DeviceArgs, Document};
use crate::app::interrupt::Interrupt;
use crate::app::terminal::shorten_message;
use crate::bench::energy::EnergyMeter;
use crate::bench::gates::{self, Gate, Outcome};
use crate::bench::llama_cpp::{LlamaBenchOptions, LlamaCpp};
use crate::bench::machine::{Load, MAX_QUIET_LOAD, Machine};
use crate::bench::record::{Conditions, ModelRecord, Record};
use crate::bench::runner::required_positions;
use crate::bench::statistics::SAMPLES;
use crate::bench::task::Task;
use crate::bench::{
    BenchError, DEFAULT_PAIRS, Protocol, Side, Step, TOKENS_AFTER_CONTEXT, positions,
};
use crate::page;
use crate::system::disk;
use crate::system::show::file_name;

use measuring::BenchWork;

const WINDOW: usize = 512;

const MIN_CONTEXT: usize = 128;

pub(super) fn execute(args: &BenchArgs) -> Result<(), Failure> {
    check_output(args)?;
    let gates = args.gates.as_deref().map(gates::read).transpose()?;
    let gates = gates.unwrap_or_default();
    let rank = if gates.iter().any(|gate| gate.rank.is_some()) {
        common_rank(&args.model)?
    } else {
        None
    };
    let (compared, text) = (args.baseline().is_some(), args.text.is_some());
    gates::check(&gates, rank, compared, text, args.pairs as usize)?;
    let mut sensor = args.sensor.as_ref().map(EnergyMeter::open).transpose()?;
    let mut bench = PreparedBench::new(args)?;
    let began = SystemTime::now();
    let pool = Arc::clone(&bench.pool);
    let (device, metered) = (bench.device(), sensor.as_mut());
    let found = on_device(device, &pool, BenchWork::new(&mut bench, metered))?;
    bench.notes.extend(found.load.and_then(load_note));
    let conditions = Conditions {
        date: date::format_utc(began),
        command: std::env::args_os()
            .map(|argument| argument.to_string_lossy().into_owned())
            .collect(),
        machine: Machine::detect(),
        load: found.load,
        device: found.device,
        device_bytes: found.device_bytes,
        threads: args.threads.count(),
        kv_type: args.kv.kv_type.name(),
        warm_up: bench.protocol.warm_up,
        cool_down_seconds: bench.protocol.cool_down.as_secs_f64(),
        seed: args.seed,
        bootstrap_samples: SAMPLES,
        sensor: sensor.as_ref().map(EnergyMeter::record),
    };
    let ((subject, baseline), quality) = (found.subjects, found.quality);
    let mut record = Record::new(
        conditions,
        subject,
        baseline,
        found.measured,
        quality,
        bench.notes,
    );
    let judged = gates.iter().map(|gate: &Gate| gate.judge(&record, rank));
    record.gates = judged.collect();
    print_results(args, &record)
}

fn print_results(args: &BenchArgs, record: &Record) -> Result<(), Failure> {
    say!("{}", record.to_string().trim_end());
    for note in &record.notes {
        say!("htc: warning: {}", shorten_message(note));
    }
    if let Some(path) = &args.output {
        let html = page::bench::page(record).ok_or(Failure::PageTooLarge)?;
        disk::write(path, &html, args.force)?;
    }
    if args.json {
        print_json(Document::Benchmark, record)?;
    }
    let gates = record.gates.iter();
    let mut failed = gates.filter(|gate| gate.outcome == Outcome::Failed);
    match failed.next() {
        None => Ok(()),
        Some(first) => Err(Failure::Gates {
            first: first.to_string(),
            failed: 1 + failed.count(),
            all: record.gates.len(),
        }),
    }
}

fn check_output(args: &BenchArgs) -> Result<(), Failure> {
    let Some(path) = &args.output else {
        return Ok(());
    };
    let against = args.baseline().map(|against| match against {
        Baseline::Model(path) | Baseline::LlamaCpp(path) => path,
    });
    let trace = args.sensor.as_ref().and_then(|sensor| match sensor {
        SensorSpec::Trace { path, .. } => Some(path.clone()),
        _ => None,
    });
    let others = [
        &against,
        &args.against_model,
        &args.text,
        &args.gates,
        &trace,
    ];
    let mut inputs: Vec<&Path> = others.into_iter().flatten().map(PathBuf::as_path).collect();
    inputs.push(&args.model);
    report::check_output(path, &inputs, args.force)
}

fn common_rank(path: &Path) -> Result<Option<usize>, Failure> {
    Ok(match open_container(path)? {
        Opened::Htz(htz) => gates::rank_of(&htz.manifest().plan),
        Opened::Gguf(_) | Opened::Folder(_) => None,
    })
}

fn load_note(load: Load) -> Option<String> {
    (load.others > MAX_QUIET_LOAD || load.stolen > MAX_QUIET_LOAD).then(|| {
        format!(
            "the machine was not quiet: of the processors' time other programs had {:.1} %, a hypervisor {:.1} %; measure again",
            100.0 * load.others,
            100.0 * load.stolen
        )
    })
}

struct LoadedModel {
    path: PathBuf,
    name: String,
    model: Arc<Model>,
    tokenizer: Tokenizer,
}

impl LoadedModel {
    fn new(path: &Path) -> Result<LoadedModel, Failure> {
        let model = open_model(path)?;
        Ok(LoadedModel {
            path: path.into(),
            name: file_name(path),
            tokenizer: open_tokenizer(path, &model)?,
            model,
        })
    }

    fn context(&self) -> usize {
        self.model.hyper().context
    }

    fn measuree(&self, engine: String) -> ModelRecord {
        ModelRecord {
            name: self.name.clone(),
            bytes: self.model.file().size(),
            engine,
            fraction: None,
            touched_bytes: None,
        }
    }
}

fn engine_name() -> String {
    format!("htc {}", env!("CARGO_PKG_VERSION"))
}

struct PreparedBench<'a> {
    args: &'a BenchArgs,
    subject: LoadedModel,
    setting: ActiveSetting,
    baseline: Option<(LoadedModel, Option<PathBuf>)>,
    protocol: Protocol,
    positions: usize,
    pool: Arc<Pool>,
    interrupt: Interrupt,
    notes: Vec<String>,
}

impl<'a> PreparedBench<'a> {
    fn new(args: &'a BenchArgs) -> Result<PreparedBench<'a>, Failure> {
        let baseline = match (args.baseline(), &args.against_model) {
            (None, _) => None,
            (Some(Baseline::Model(path)), None) => Some((LoadedModel::new(&path)?, None)),
            (Some(Baseline::Model(_)), Some(_)) => return Err(Failure::AgainstModel),
            (Some(Baseline::LlamaCpp(program)), other) => {
                let path = other.as_ref().unwrap_or(&args.model);
                if path.is_dir() || !MappedFile::open(path)?.starts_with(b"GGUF") {
                    return Err(Failure::NotGguf(path.clone()));
                }
                Some((LoadedModel::new(path)?, Some(program)))
            }
        };
        let subject = LoadedModel::new(&args.model)?;
        let setting = setting_for_fraction(&subject.model, args.fraction);
        let setting = setting.map_err(|error| BenchError::Generate {
            model: subject.name.clone(),
            error,
        })?;
        let mut bench = PreparedBench {
            protocol: Protocol {
                pairs: args.pairs as usize,
                warm_up: args.warm_up as usize,
                cool_down: args.cool_down,
                prompts: args.prompts.0.clone(),
                tokens: args.tokens.0.clone(),
                contexts: Vec::new(),
            },
            args,
            subject,
            setting,
            baseline,
            positions: 0,
            pool: Arc::new(Pool::new(args.threads.count())?),
            interrupt: Interrupt::install(),
            notes: Vec::new(),
        };
        bench.add_protocol_notes();
        bench.plan()?;
        Ok(bench)
    }

    fn models(&self) -> impl Iterator<Item = &LoadedModel> {
        let baseline = self.baseline.as_ref().map(|(loaded, _)| loaded);
        std::iter::once(&self.subject).chain(baseline)
    }

    fn add_protocol_notes(&mut self) {
        if self.args.pairs < DEFAULT_PAIRS {
            self.notes.push(format!(
                "fewer than {DEFAULT_PAIRS} pairs say little of how far off the ratios are"
            ));
        }
        let left_out = self.protocol.left_out();
        if !left_out.is_empty() {
            let named = left_out
                .iter()
                .map(|(kind, n)| format!("{}/{n}", kind.name()));
            let named: Vec<String> = named.collect();
            self.notes.push(format!(
                "--pairs {} leaves no turn for {}",
                self.args.pairs,
                named.join(", ")
            ));
        }
        let mut models = self.models();
        if let (Some(one), Some(other)) = (models.next(), models.next())
            && one.tokenizer.vocabulary().tokens != other.tokenizer.vocabulary().tokens
        {
            drop(models);
            self.notes.push(
                "the vocabularies differ: the two write other tokens, and tokens/s do not compare"
                    .into(),
            );
        }
    }

    fn plan(&mut self) -> Result<(), BenchError> {
        let shortest_context = self.models().map(LoadedModel::context).min().unwrap_or(0);
        let lengths = match &self.args.context {
            None => Vec::new(),
            Some(Contexts::Lengths(lengths)) => lengths.clone(),
            Some(Contexts::All) => {
                let doubles = std::iter::successors(Some(MIN_CONTEXT), |n| n.checked_mul(2));
                let within = doubles.take_while(|&n| n <= shortest_context.max(MIN_CONTEXT));
                within.collect()
            }
        };
        let (mut tasks, mut full) = (Vec::new(), Vec::new());
        for &kind in &self.protocol.prompts {
            tasks.extend(self.protocol.tokens.iter().map(|&n| Task::prompt(kind, n)));
        }
        for &length in &lengths {
            if length <= shortest_context
                && positions(length, TOKENS_AFTER_CONTEXT) > shortest_context
            {
                full.push(length.to_string());
                tasks.push(Task::context(length, 1));
            } else {
                let tokens_after = if length <= shortest_context {
                    TOKENS_AFTER_CONTEXT
                } else {
                    1
                };
                tasks.push(Task::context(length, tokens_after));
            }
        }
        let mut longest = 0;
        for loaded in self.models() {
            for &task in &tasks {
                let context = loaded.context();
                let needed = required_positions(task, &loaded.name, &loaded.tokenizer, context)?;
                longest = longest.max(needed);
            }
        }
        if !full.is_empty() {
            self.notes.push(format!(
                "after a context of {} tokens the model has no positions for {TOKENS_AFTER_CONTEXT} more: prefill alone is measured",
                full.join(", ")
            ));
        }
        self.positions = longest;
        self.protocol.contexts = lengths;
        Ok(())
    }

    /// Returns the device. With automatic choice, a comparison with llama.cpp, which runs on the
    /// CPU, uses the CPU.
    fn device(&self) -> DeviceArgs {
        let beside_llama_cpp = matches!(self.baseline, Some((_, Some(_))));
        match self.args.device.device {
            DeviceChoice::Auto if beside_llama_cpp => DeviceArgs {
                device: DeviceChoice::Cpu,
            },
            _ => self.args.device,
        }
    }

    fn executed_models(&self) -> impl Iterator<Item = &LoadedModel> {
        let baseline = self.baseline.as_ref();
        let baseline = baseline.filter(|(_, program)| program.is_none());
        std::iter::once(&self.subject).chain(baseline.map(|(loaded, _)| loaded))
    }

    fn llama_cpp(&self, loaded: &LoadedModel, program: &Path) -> Result<LlamaCpp, BenchError> {
        LlamaCpp::new(
            program,
            &loaded.path,
            loaded.name.clone(),
            loaded.tokenizer.clone(),
            LlamaBenchOptions {
                threads: self.args.threads.count(),
                kv_type: self.args.kv.kv_type,
                time_limit: self.args.time_limit,
            },
            self.interrupt.cancel(),
        )
    }
}

struct BenchProgress(ProgressBar);

impl BenchProgress {
    fn new() -> BenchProgress {
        BenchProgress(progress::bar(
            "{bar:30} {pos}/{len} runs, {eta} left, {msg}",
        ))
    }

    fn show(&self, step: Step) {
        let side = match step.side {
            Side::Subject => "subject",
            Side::Baseline => "baseline",
        };
        self.0.set_length(step.total as u64);
        self.0.set_position(step.done as u64);
        self.0.set_message(format!("{}, {side}", step.task));
    }
}
