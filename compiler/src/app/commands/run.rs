//! `htc run`.

mod draft;
mod live;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;

use htc_formats::htz::KernelCode;
use htc_loader::adapt::{Adaptation, AdaptationStats};
use htc_loader::backend::PlannedSession;
use htc_loader::device::{DeviceWork, Executor};
use htc_loader::dial::ActiveFraction;
use htc_loader::generate::{ContextFullPolicy, GenerateLimits, GenerateSummary, Generator, Stop};
use htc_loader::kv::{Kv, KvOptions, KvShape};
use htc_loader::live::Energy;
use htc_loader::sampling::Sampler;
use htc_loader::speculate::{SpeculationStats, Speculator};
use htc_loader::tokenizer::{AddSpecialTokens, Tokenizer};
use htc_loader::{Backend, Model, Pool, Session};
use schemars::JsonSchema;
use serde::Serialize;

use super::generation::{check_context, default_context, sampler};
use super::{
    Failure, InFile as _, answered, check_memory, conversation, describe_setting, loaded,
    on_device, open_tokenizer, print_device_remarks, print_json, setting_for_fraction,
};
use crate::app::chat::Message;
use crate::app::cli::{Document, OnFullArg, RunArgs, RunLength};
use crate::app::terminal::{StandardOutput, display_path};
use crate::system::memory::{self, ResidentMemory};
use crate::system::show::{format_bytes, format_count};
use crate::system::text;
use draft::Models;
use live::DeviceMonitor;

pub(super) fn execute(args: &RunArgs) -> Result<(), Failure> {
    let seed = args.sampling.seed();
    let sampler = sampler(&args.sampling, seed)?;
    let models = Models::open(args)?;
    let pool = Arc::new(Pool::new(args.threads.count())?);
    let (adaptation, state) = draft::adaptation(args, &models, &pool)?.unzip();
    let (path, model) = (&models.path, &models.model);
    let tokenizer = open_tokenizer(path, model)?;
    let prompt = prompt(args)?;
    let tokens = if args.chat {
        let message = Message::user(&prompt);
        conversation::encode(path, &tokenizer, args.system.as_deref(), &[message])?
    } else {
        tokenizer.encode(&prompt, AddSpecialTokens::Prompt)
    };
    check_context(args.context, model)?;
    let context = max_context(args, model, tokens.len());
    let writing = RunWork {
        args,
        models: &models,
        adaptation,
        state: state.flatten(),
        tokenizer: &tokenizer,
        sampler,
        seed,
        tokens: &tokens,
        context,
    };
    on_device(args.device, &pool, writing)
}

struct RunWork<'a> {
    args: &'a RunArgs,
    models: &'a Models,
    adaptation: Option<Adaptation>,
    state: Option<draft::AdaptationFile>,
    tokenizer: &'a Tokenizer,
    sampler: Sampler,
    seed: u64,
    tokens: &'a [u32],
    context: usize,
}

impl RunWork<'_> {
    fn positions(&self) -> usize {
        match self.args.tokens.limit() {
            Some(_) => self.context,
            // The length is unknown: only the prompt counts.
            None => self.tokens.len(),
        }
    }
}

impl DeviceWork for RunWork<'_> {
    type Outcome = Result<(), Failure>;

    fn kernels(&self) -> Option<KernelCode> {
        self.models.model.kernels()
    }

    fn sessions(&self) -> Vec<PlannedSession<'_>> {
        let (positions, kind) = (self.positions(), self.args.kv.kv);
        let planned = |model| PlannedSession {
            model,
            positions,
            kind,
        };
        self.models.iter().map(planned).collect()
    }

    fn run<E: Executor>(self, executor: &E) -> Result<(), Failure> {
        let (args, models, tokens) = (self.args, self.models, self.tokens);
        if !executor.has_own_memory() {
            check_memory(&models.path, &self.sessions(), args.threads.count())?;
        }
        let (path, mut sampler) = (&models.path, self.sampler);
        let setting = setting_for_fraction(&models.model, models.fraction).in_file(path)?;
        let mut kv = KvOptions::new(args.kv.kv);
        kv.max_prompt_positions = args.kv_keep;
        let session = |model: &Arc<Model<E::Backend>>| {
            let (model, backend) = (Arc::clone(model), executor.backend());
            let session = Session::with_kv_of(model, backend, self.context, &kv);
            session.in_file(path)
        };
        let model = loaded(path, executor.load(&models.model))?;
        let mut speculator = match &models.draft {
            None => None,
            Some(draft) => {
                let other = draft.model.as_ref();
                let other = other.map(|other| loaded(&draft.path, executor.load(other)));
                let other = other.transpose()?;
                let other = other.as_ref().map(session).transpose()?;
                let length = args.draft_length.unwrap_or_default();
                Some(draft.speculator(&model, other, length, &sampler)?)
            }
        };
        if let Some(adaptation) = self.adaptation {
            speculator = speculator.map(|draft| draft.with_adaptation(adaptation));
        }
        let mut session = session(&model)?;
        session.set(setting);
        let most = models.fraction.unwrap_or(ActiveFraction::FULL);
        let live = DeviceMonitor::start(&args.live, &mut session, most, executor.identifier())?;
        let (limits, tokenizer) = (limits(args), self.tokenizer);
        let generator = match &mut speculator {
            None => Generator::new(&mut session, tokenizer, &mut sampler, tokens, limits),
            Some(draft) => {
                let sampler = &mut sampler;
                Generator::with_draft(&mut session, draft, tokenizer, sampler, tokens, limits)
            }
        };
        let generator = generator.in_file(path)?;
        let (text, summary) = write(args, generator)?;
        let followed = live.as_ref().is_some_and(DeviceMonitor::limits);
        let energy = live.and_then(DeviceMonitor::finish);
        print_device_remarks(executor);
        let run = FinishedRun {
            summary,
            seed: self.seed,
            monitored: followed,
            energy,
            session: &session,
            speculator: speculator.as_ref(),
        };
        run.print_summary(args, models.fraction.is_some());
        // The text matters more than the state of the draft.
        if args.json {
            print_json(Document::Run, &run.record(text))?;
        }
        match (run.adaptation(), self.state) {
            (Some(adaptation), Some(state)) => state.save(adaptation),
            _ => Ok(()),
        }
    }
}

fn limits(args: &RunArgs) -> GenerateLimits {
    let mut limits = GenerateLimits::default();
    limits.tokens = args.tokens.limit();
    limits.positions = args.context.positions();
    limits.ignore_end = args.ignore_eos;
    if args.on_full == OnFullArg::Slide {
        limits.context_full = ContextFullPolicy::Slide;
    }
    limits
}

fn max_context(args: &RunArgs, model: &Model, read: usize) -> usize {
    let asked = args.context.positions();
    let full = asked.unwrap_or(model.hyper().context);
    // Unless it is asked for, the result of a LongRoPE model must not depend on the maximum length.
    let short = default_context(model);
    match args.tokens.limit() {
        Some(n) => read.saturating_add(n).min(full),
        None if asked.is_none() && read < short => short,
        None => full,
    }
}

struct FinishedRun<'a, B: Backend> {
    summary: GenerateSummary,
    seed: u64,
    monitored: bool,
    energy: Option<Energy>,
    session: &'a Session<B>,
    speculator: Option<&'a Speculator<B>>,
}

impl<B: Backend> FinishedRun<'_, B> {
    fn adaptation(&self) -> Option<&Adaptation> {
        self.speculator.and_then(Speculator::adaptation)
    }

    fn print_summary(&self, args: &RunArgs, in_part: bool) {
        say!("{}", describe_summary(&self.summary));
        if args.sampling.has_random_seed() {
            say!("seed {}", self.seed);
        }
        let model = self.session.model();
        if in_part {
            say!("{}", describe_setting(model, self.session.setting()));
        }
        if self.monitored {
            let [least, largest] = self.session.fractions();
            say!("followed: {least:.3} to {largest:.3} of the weights' bytes for every token");
        }
        if let Some(energy) = &self.energy {
            say!(
                "{}",
                live::describe_energy(energy, self.summary.tokens as u64)
            );
        }
        if self.summary.slides > 0 {
            let slides = self.summary.slides;
            say!(
                "the context was full {}, and began anew with its last half",
                format_count(slides, "time")
            );
        }
        if let Some(speculator) = self.speculator {
            say!("{}", describe_draft(&speculator.stats()));
        }
        if let Some(adaptation) = self.adaptation() {
            say!("{}", describe_adaptation(&adaptation.stats()));
        }
        let (context, full) = (self.session.limit(), model.hyper().context);
        if self.summary.stop == Stop::Context
            && context < full
            && args.tokens == RunLength::UntilEnd
            && args.context.positions().is_none()
        {
            say!(
                "the first {context} positions are full, up to which the model's LongRoPE rotates as a short \
                 text; -c or -n asks for more, up to {full} with the prompt, which rotates otherwise from the beginning"
            );
        }
        let drafting = self.speculator.and_then(Speculator::draft_session);
        let kv = self.session.kv().bytes() + drafting.map_or(0, |draft| draft.kv().bytes());
        say!("{}", describe_memory(kv as u64));
        say!("{}", describe_kv_cache(self.session));
    }

    fn record(&self, text: String) -> Record {
        let [fraction_min, fraction_max] = self.session.fractions();
        let done = self.speculator.map(Speculator::stats).unwrap_or_default();
        Record {
            text,
            seed: self.seed,
            prompt_tokens: self.summary.prompt_tokens,
            tokens: self.summary.tokens,
            stop: self.summary.stop,
            slides: self.summary.slides,
            tokens_per_second: self.summary.decode_speed(),
            acceptance: done.acceptance(),
            speed_up: done.speed_up(),
            drafted: done.drafted,
            accepted: done.accepted,
            fraction_min,
            fraction_max,
            joules: self.energy.map(|energy| energy.joules),
            tokens_per_joule: self
                .energy
                .and_then(|energy| energy.tokens_per_joule(self.summary.tokens as u64)),
            kv_bytes_per_token: self.session.kv_usage().bytes_per_position,
            kv_bytes: self.session.kv_usage().used,
        }
    }
}

#[derive(JsonSchema, Serialize)]
pub(super) struct Record {
    text: String,
    /// Seed of the sampling.
    seed: u64,
    prompt_tokens: usize,
    tokens: usize,
    stop: Stop,
    slides: usize,
    /// Speed after the first token; `null` with fewer than two tokens.
    tokens_per_second: Option<f64>,
    /// Accepted fraction of drafted tokens; `null` without a draft.
    acceptance: Option<f64>,
    /// Speed relative to decoding without a draft; `null` if no token was decoded without one.
    speed_up: Option<f64>,
    drafted: u64,
    accepted: u64,
    fraction_min: f64,
    fraction_max: f64,
    /// Energy of the generation; `null` if the sensor does not measure it.
    joules: Option<f64>,
    tokens_per_joule: Option<f64>,
    /// Bytes of a position in all layers, in the type of the KV cache.
    kv_bytes_per_token: usize,
    kv_bytes: usize,
}

fn write<B: Backend>(
    args: &RunArgs,
    generator: Generator<'_, B>,
) -> Result<(String, GenerateSummary), Failure> {
    let mut out = StandardOutput::new();
    let (mut whole, mut broken) = (String::new(), None);
    let summary = generator.run(|text| {
        if args.json {
            whole += text;
            return true;
        }
        match out.write_text(text) {
            Ok(()) => true,
            Err(error) => {
                broken = Some(error);
                false
            }
        }
    });
    let summary = summary.in_file(args.model.path())?;
    let ended = match broken {
        Some(error) => Err(error),
        None if args.json => Ok(()),
        None => out.write_text("\n"),
    };
    answered(ended)?;
    Ok((whole, summary))
}

fn describe_draft(done: &SpeculationStats) -> String {
    let acceptance = match done.acceptance() {
        Some(part) => format!(
            "{} of {} kept ({:.1} %) in {}",
            done.accepted,
            format_count(done.drafted, "drafted token"),
            100.0 * part,
            format_count(done.rounds, "pass"),
        ),
        None => "nothing was drafted".to_owned(),
    };
    let alone = match done.without_draft {
        0 => String::new(),
        alone => format!(
            "; {} without a draft, because it did not pay or fit, or to measure plain decoding",
            format_count(alone, "token")
        ),
    };
    let speed = match done.speed_up() {
        Some(speed) => format!(", {speed:.2} times as fast as without"),
        None => String::new(),
    };
    format!(
        "draft: {acceptance}, {:.0} ms drafting beside {:.0} ms of the model{speed}{alone}",
        1e3 * done.draft_time.as_secs_f64(),
        1e3 * done.verify_time.as_secs_f64(),
    )
}

fn prompt(args: &RunArgs) -> Result<String, Failure> {
    match (&args.prompt, &args.prompt_file) {
        (Some(text), _) => Ok(text.clone()),
        (None, Some(path)) => {
            let text = text::read(path)?;
            if text.is_empty() {
                return Err(Failure::EmptyPrompt(display_path(path).to_string()));
            }
            Ok(text)
        }
        (None, None) => {
            let stdin = io::stdin();
            if stdin.is_terminal() {
                return Err(Failure::NoPrompt);
            }
            let text = text::read_from(stdin.lock(), Path::new("standard input"))?;
            // Strip the line break of `echo`.
            let text = text.strip_suffix('\n').unwrap_or(&text);
            if text.is_empty() {
                return Err(Failure::EmptyPrompt("standard input".to_owned()));
            }
            Ok(text.to_owned())
        }
    }
}

fn describe_kv_cache<B: Backend>(session: &Session<B>) -> String {
    let (usage, counters) = (session.kv_usage(), session.kv_counters());
    let mut text = format!(
        "KV cache: {} bytes for a position",
        usage.bytes_per_position
    );
    // Mean over layers, which may differ.
    let layers = KvShape::from(session.model().hyper()).layers.max(1);
    let mean = |all: usize| (10.0 * all as f64 / layers as f64).round() / 10.0;
    if usage.compressed > 0 || usage.bytes_per_position != usage.full_bytes_per_position {
        text += &format!(
            ", {} for one in full; {} of {} compressed",
            usage.full_bytes_per_position,
            mean(usage.compressed),
            usage.positions
        );
    }
    if usage.evicted > 0 {
        text += &format!("; {} evicted", mean(usage.evicted));
    }
    if counters.updates > 0 {
        text += &format!(
            "; bases updated {} in {:.0} ms",
            format_count(counters.updates, "time"),
            1e3 * counters.update_time.as_secs_f64()
        );
    }
    if let Some([keys, values]) = counters.residual_ratio() {
        let percent = [keys, values].map(|part| 100.0 * part);
        text += &format!(
            "; bases miss {:.2} % of the energy of keys and {:.2} % of that of values",
            percent[0], percent[1]
        );
    }
    text
}

fn describe_adaptation(learnt: &AdaptationStats) -> String {
    let residual = match learnt.residual {
        Some([now, first]) => format!(
            ", its bases miss {:.2} % of what differs, as they were {:.2} %",
            100.0 * now,
            100.0 * first
        ),
        None => String::new(),
    };
    let dropped = match learnt.dropped {
        0 => String::new(),
        dropped => format!(" ({dropped} dropped, as too many waited)"),
    };
    format!(
        "learnt: from {} not kept{dropped} in {}, {:.4} from where it began{residual}; {:.0} ms",
        format_count(learnt.rejections, "token"),
        format_count(learnt.updates, "update"),
        learnt.distance,
        1e3 * learnt.time.as_secs_f64(),
    )
}

fn describe_memory(kv: u64) -> String {
    let kv = format!("KV cache {}", format_bytes(kv));
    match memory::resident() {
        Some(ResidentMemory {
            peak,
            mapped,
            anonymous: own,
        }) => format!(
            "memory: {} resident at most; now {} of mapped files and {} of its own; {kv}",
            format_bytes(peak),
            format_bytes(mapped),
            format_bytes(own),
        ),
        None => format!("memory: resident memory is not known on this system; {kv}"),
    }
}

fn describe_summary(summary: &GenerateSummary) -> String {
    let decode = match summary.decode_speed() {
        Some(speed) => format!("{speed:.2} tokens/s"),
        None => "too few to time".into(),
    };
    let stop = match summary.stop {
        Stop::Limit => "-n reached",
        Stop::End => "end of sequence",
        Stop::Context => "context full",
        Stop::Receiver => "output closed",
        _ => "stopped",
    };
    format!(
        "prompt: {}, {:.2} tokens/s; written: {}, {decode} ({stop})",
        format_count(summary.prompt_tokens, "token"),
        summary.prefill_speed(),
        format_count(summary.tokens, "token"),
    )
}
