//! `htc run`.

use std::io::{self, IsTerminal};
use std::path::Path;

use htc_loader::generate::{self, Limits, Stop, Summary};
use htc_loader::kv::Kv;
use htc_loader::sampling::{Sampler, SamplingOptions};
use htc_loader::tokenizer::{AddSpecial, Tokenizer};
use htc_loader::{Cpu, Session};

use super::{
    Failure, check_room, ignore_closed_pipe, in_use, open_model, setting_of, tokenizer_of,
};
use crate::app::chat::{self, ChatError, Conversation, Message, Written};
use crate::app::cli::RunArgs;
use crate::app::terminal::Output;
use crate::system::memory::{self, Resident};
use crate::system::show::bytes_for_people;
use crate::system::text;

pub(super) fn execute(args: &RunArgs) -> Result<(), Failure> {
    let mut options = SamplingOptions::default();
    options.temperature = args.temp;
    options.top_k = args.top_k;
    options.top_p = args.top_p;
    options.seed = args.seed;
    let mut sampler = Sampler::new(options)?;
    let model = open_model(&args.model)?;
    let tokenizer = tokenizer_of(&args.model, &model)?;
    let prompt = prompt(args)?;
    let tokens = match args.chat {
        false => tokenizer.encode(&prompt, AddSpecial::Prompt),
        true => conversation(args, &tokenizer, prompt)?,
    };
    let cpu = Cpu::with_threads(args.threads.count())?;
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
    let needed = memory::of_session(model.hyper(), positions, threads, kv_type);
    check_room(&args.model, needed)?;
    let failed = |error| Failure::Generate {
        path: args.model.clone(),
        error,
    };
    let setting = setting_of(&model, args.fraction).map_err(|error| failed(error.into()))?;
    let used = args.fraction.map(|_| in_use(&model, setting));
    let session = Session::with_kv_type(model, cpu, context, kv_type);
    let mut session = session.map_err(|error| failed(error.into()))?;
    session.set(setting);
    let mut limits = Limits::default();
    limits.tokens = args.tokens;
    limits.ignore_end = args.ignore_eos;
    let mut out = Output::new();
    let mut broken = None;
    let summary = generate::generate(
        &mut session,
        &tokenizer,
        &mut sampler,
        &tokens,
        limits,
        |text| match out.text(text) {
            Ok(()) => true,
            Err(error) => {
                broken = Some(error);
                false
            }
        },
    )
    .map_err(failed)?;
    let ended = match broken {
        Some(error) => Err(error),
        None => out.text("\n"),
    };
    ended.or_else(ignore_closed_pipe).map_err(Failure::Output)?;
    say!("{}", in_words(&summary));
    if let Some(used) = used {
        say!("{used}");
    }
    if summary.stop == Stop::Context && context < full && args.tokens.is_none() {
        say!(
            "the first {context} positions are full, up to which the model's LongRoPE rotates as a short \
             text; -n N asks for more, up to {full} with the prompt, which rotates otherwise from the beginning"
        );
    }
    say!("{}", memory_in_words(session.kv().bytes() as u64));
    Ok(())
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
