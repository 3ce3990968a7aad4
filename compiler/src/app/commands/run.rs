//! `htc run`.

mod draft;

use std::io::{self, IsTerminal};
use std::path::Path;
use std::sync::Arc;

use htc_loader::generate::{GenerateError, Generator, Limits, Stop, Summary};
use htc_loader::kv::{Kv, KvShape};
use htc_loader::sampling::{Sampler, SamplingOptions};
use htc_loader::speculate::{Speculated, Speculator};
use htc_loader::tokenizer::{AddSpecial, Tokenizer};
use htc_loader::{Cpu, Model, Pool, Session};
use serde::Serialize;

use super::{
    Failure, check_room, ignore_closed_pipe, in_use, print_json, setting_of, tokenizer_of,
};
use crate::app::chat::{self, ChatError, Conversation, Message, Written};
use crate::app::cli::RunArgs;
use crate::app::terminal::Output;
use crate::system::memory::{self, Resident};
use crate::system::show::bytes_for_people;
use crate::system::text;
use draft::{Draft, Models};

pub(super) fn execute(args: &RunArgs) -> Result<(), Failure> {
    let mut options = SamplingOptions::default();
    options.temperature = args.temp;
    options.top_k = args.top_k;
    options.top_p = args.top_p;
    options.seed = args.seed;
    let mut sampler = Sampler::new(options)?;
    let Models {
        path,
        model,
        fraction,
        draft,
    } = Models::open(args)?;
    let tokenizer = tokenizer_of(&path, &model)?;
    let prompt = prompt(args)?;
    let tokens = match args.chat {
        false => tokenizer.encode(&prompt, AddSpecial::Prompt),
        true => conversation(args, &tokenizer, prompt)?,
    };
    let pool = Arc::new(Pool::new(args.threads.count())?);
    let full = model.hyper().context;
    let context = match args.tokens {
        Some(n) => tokens.len().saturating_add(n).min(full),
        // What a model with LongRoPE computes must not hang on how long the text might become.
        None => match model.hyper().forward.long_rope {
            Some(long) if tokens.len() < long.original_context => long.original_context.min(full),
            _ => full,
        },
    };
    let positions = match args.tokens {
        Some(_) => context,
        // How long it becomes is not known: what is known to be there.
        None => tokens.len(),
    };
    let (threads, kv_type) = (args.threads.count(), args.kv.kv_type);
    let room = |model: &Model| memory::of_session(model.hyper(), positions, threads, kv_type);
    let other = draft.as_ref().and_then(Draft::model).map_or(0, room);
    check_room(&path, room(&model).saturating_add(other))?;
    let failed = |error| Failure::Generate {
        path: path.clone(),
        error,
    };
    let setting = setting_of(&model, fraction).map_err(|error| failed(error.into()))?;
    let used = fraction.map(|_| in_use(&model, setting));
    let session = |model: &Arc<Model>| {
        let cpu = Cpu::new(&pool);
        let session = Session::with_kv_type(Arc::clone(model), cpu, context, kv_type);
        session.map_err(|error| failed(error.into()))
    };
    let mut speculator = match &draft {
        None => None,
        Some(draft) => Some(draft.speculator(&model, args.draft_length, &sampler, session)?),
    };
    let mut session = session(&model)?;
    session.set(setting);
    let mut limits = Limits::default();
    limits.tokens = args.tokens;
    limits.ignore_end = args.ignore_eos;
    let generator = match &mut speculator {
        None => Generator::new(&mut session, &tokenizer, &mut sampler, &tokens, limits),
        Some(draft) => {
            let sampler = &mut sampler;
            Generator::with_draft(&mut session, draft, &tokenizer, sampler, &tokens, limits)
        }
    };
    let generator = generator.map_err(failed)?;
    let (text, summary) = write(args, generator).map_err(|error| match error {
        Ended::Generate(error) => failed(error),
        Ended::Output(error) => Failure::Output(error),
    })?;
    say!("{}", in_words(&summary));
    if let Some(used) = used {
        say!("{used}");
    }
    let speculated = speculator.as_ref().map(Speculator::done);
    if let Some(done) = speculated {
        say!("{}", draft_in_words(&done));
    }
    if summary.stop == Stop::Context && context < full && args.tokens.is_none() {
        say!(
            "the first {context} positions are full, up to which the model's LongRoPE rotates as a short \
             text; -n N asks for more, up to {full} with the prompt, which rotates otherwise from the beginning"
        );
    }
    let drafts = speculator.as_ref().and_then(Speculator::draft_session);
    let kv = session.kv().bytes() + drafts.map_or(0, |draft| draft.kv().bytes());
    say!("{}", memory_in_words(kv as u64));
    if args.json {
        let fraction = model.dial().fraction(setting);
        let kv_bytes = KvShape::from(model.hyper()).position_bytes(kv_type);
        let done = speculated.unwrap_or_default();
        return print_json(&Record {
            text,
            prompt_tokens: summary.prompt_tokens,
            tokens: summary.tokens,
            tokens_per_second: summary.decode_speed(),
            acceptance: done.acceptance(),
            drafted: done.drafted,
            accepted: done.accepted,
            fraction_min: fraction,
            fraction_max: fraction,
            kv_bytes_per_token: kv_bytes,
        });
    }
    Ok(())
}

/// What a run was, for programs.
#[derive(Serialize)]
struct Record {
    text: String,
    prompt_tokens: usize,
    tokens: usize,
    /// After the first; `null` where fewer than two were written.
    tokens_per_second: Option<f64>,
    /// Part of the drafted tokens that was kept; `null` without a draft.
    acceptance: Option<f64>,
    drafted: u64,
    accepted: u64,
    /// Least and largest part of the weights' bytes that a token touched.
    fraction_min: f64,
    fraction_max: f64,
    /// Keys and values of a position in all layers.
    kv_bytes_per_token: usize,
}

/// Why writing ended before its end.
enum Ended {
    Generate(GenerateError),
    Output(io::Error),
}

/// Writes the text, to standard output as it comes or, for JSON, into the result.
fn write(args: &RunArgs, generator: Generator<'_>) -> Result<(String, Summary), Ended> {
    let mut out = Output::new();
    let (mut whole, mut broken) = (String::new(), None);
    let summary = generator.run(|text| {
        if args.json {
            whole += text;
            return true;
        }
        match out.text(text) {
            Ok(()) => true,
            Err(error) => {
                broken = Some(error);
                false
            }
        }
    });
    let summary = summary.map_err(Ended::Generate)?;
    let ended = match broken {
        Some(error) => Err(error),
        None if args.json => Ok(()),
        None => out.text("\n"),
    };
    ended.or_else(ignore_closed_pipe).map_err(Ended::Output)?;
    Ok((whole, summary))
}

/// What drafting did.
fn draft_in_words(done: &Speculated) -> String {
    let acceptance = match done.acceptance() {
        Some(part) => format!(
            "{} of {} drafted tokens kept ({:.1} %) in {} passes",
            done.accepted,
            done.drafted,
            100.0 * part,
            done.rounds,
        ),
        None => "nothing was drafted".to_owned(),
    };
    let alone = match done.alone {
        0 => String::new(),
        alone => format!("; {alone} tokens without a draft, where it did not pay or had no room"),
    };
    format!(
        "draft: {acceptance}, {:.0} ms drafting beside {:.0} ms of the model{alone}",
        1e3 * done.draft.as_secs_f64(),
        1e3 * done.verify.as_secs_f64(),
    )
}

/// The tokens of the prompt as the model's chat template writes it. Only what the template itself
/// writes becomes control tokens.
fn conversation(
    args: &RunArgs,
    tokenizer: &Tokenizer,
    prompt: String,
) -> Result<Vec<u32>, Failure> {
    let failed = |error| Failure::Chat {
        path: args.model.clone(),
        error,
    };
    let vocabulary = tokenizer.vocabulary();
    let template = vocabulary.chat_template.clone();
    let template = template.ok_or_else(|| failed(ChatError::NoTemplate))?;
    let message = |role: &str, content: String| Message {
        role: role.to_owned(),
        content,
    };
    let system = args.system.clone().map(|text| message("system", text));
    let text_of = |token: Option<u32>| -> String {
        let piece = token.and_then(|token| tokenizer.piece(token));
        piece.unwrap_or_default().to_owned()
    };
    let conversation = Conversation {
        template,
        messages: system
            .into_iter()
            .chain([message("user", prompt)])
            .collect(),
        bos: text_of(vocabulary.bos),
        eos: text_of(vocabulary.eos),
    };
    let Written { text, said } = chat::write(&conversation).map_err(failed)?;
    if said.is_none() {
        let mut contents = conversation.messages.iter().map(|message| &message.content);
        if let Some(token) = contents.find_map(|content| tokenizer.control_in(content)) {
            let token = token.to_owned();
            return Err(Failure::Spelt { token });
        }
    }
    let said = said.unwrap_or_default();
    Ok(tokenizer.encode_conversation(&text, &said, AddSpecial::Prompt))
}

fn prompt(args: &RunArgs) -> Result<String, Failure> {
    match (&args.prompt, &args.prompt_file) {
        (Some(text), _) => Ok(text.clone()),
        (None, Some(path)) => Ok(text::read(path)?),
        (None, None) => {
            let stdin = io::stdin();
            if stdin.is_terminal() {
                return Err(Failure::NoPrompt);
            }
            let text = text::read_from(stdin.lock(), Path::new("standard input"))?;
            // The line end that `echo` adds is no part of the prompt.
            Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
        }
    }
}

/// What was in memory, and how much of it the system may take back.
fn memory_in_words(kv: u64) -> String {
    let kv = format!("KV cache {}", bytes_for_people(kv));
    match memory::resident() {
        Some(Resident { peak, mapped, own }) => format!(
            "memory: {} resident at most; now {} of mapped files and {} of its own; {kv}",
            bytes_for_people(peak),
            bytes_for_people(mapped),
            bytes_for_people(own),
        ),
        None => format!("memory: resident memory is not known on this system; {kv}"),
    }
}

fn in_words(summary: &Summary) -> String {
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
        "prompt: {} tokens, {:.2} tokens/s; written: {} tokens, {decode} ({stop})",
        summary.prompt_tokens,
        summary.prefill_speed(),
        summary.tokens,
    )
}
