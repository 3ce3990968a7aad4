//! `htc chat`: a conversation in the terminal.

use std::io::{self, BufRead, IsTerminal, Read as _, Write as _};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use htc_formats::htz::KernelCode;
use htc_loader::backend::PlannedSession;
use htc_loader::device::{DeviceWork, Executor};
use htc_loader::generate::{GenerateLimits, GenerateSummary, Generator, Stop};
use htc_loader::kv::KvOptions;
use htc_loader::sampling::Sampler;
use htc_loader::tokenizer::Tokenizer;
use htc_loader::{Backend, Model, Pool, Session};

use super::generation::{check_context, default_context, sampler};
use super::{
    Failure, InFile as _, answered, check_memory, conversation, loaded, on_device, open_model,
    open_tokenizer, print_device_remarks, setting_for_fraction,
};
use crate::app::chat::Message;
use crate::app::cli::ChatArgs;
use crate::app::terminal::{StandardOutput, shorten_message};
use crate::pipeline::ErrorKind;

/// A message leaves this part of the context for the answer: a quarter.
const ANSWER_PART: usize = 4;

/// Longest line that is read.
const MAX_LINE_BYTES: u64 = 1 << 20;

pub(super) fn execute(args: &ChatArgs) -> Result<(), Failure> {
    let seed = args.sampling.seed();
    let sampler = sampler(&args.sampling, seed)?;
    let model = open_model(args.model.path())?;
    check_context(args.context, &model)?;
    let tokenizer = open_tokenizer(args.model.path(), &model)?;
    let pool = Arc::new(Pool::new(args.threads.count())?);
    let work = ChatWork {
        args,
        model: &model,
        tokenizer: &tokenizer,
        sampler,
        context: args
            .context
            .positions()
            .unwrap_or_else(|| default_context(&model)),
    };
    // The template is tried before the first message is typed.
    work.encode(&[Message::user("Hello")])?;
    if args.sampling.has_random_seed() {
        say!("seed {seed}");
    }
    on_device(args.device, &pool, work)
}

struct ChatWork<'a> {
    args: &'a ChatArgs,
    model: &'a Arc<Model>,
    tokenizer: &'a Tokenizer,
    sampler: Sampler,
    context: usize,
}

impl ChatWork<'_> {
    fn encode(&self, messages: &[Message]) -> Result<Vec<u32>, Failure> {
        let system = self.args.system.as_deref();
        conversation::encode(self.args.model.path(), self.tokenizer, system, messages)
    }

    /// Returns the tokens of the newest messages that leave room for an answer, and drops the older
    /// ones in pairs; `None`, with a note, if the last message alone is too long.
    fn fit(&self, messages: &mut Vec<Message>) -> Result<Option<Vec<u32>>, Failure> {
        let most = self.context - (self.context / ANSWER_PART).max(1);
        let mut dropped = 0;
        loop {
            let tokens = self.encode(&messages[dropped..])?;
            if tokens.len() <= most {
                if dropped > 0 {
                    messages.drain(..dropped);
                    say!("(the context is full: the oldest messages are forgotten)");
                }
                return Ok(Some(tokens));
            }
            if messages.len() - dropped < 3 {
                say!(
                    "(the message takes {} tokens with the template; {most} of the context of {} are for it, and the rest is for the answer)",
                    tokens.len(),
                    self.context
                );
                return Ok(None);
            }
            dropped += 2;
        }
    }
}

impl DeviceWork for ChatWork<'_> {
    type Outcome = Result<(), Failure>;

    fn kernels(&self) -> Option<KernelCode> {
        self.model.kernels()
    }

    fn sessions(&self) -> Vec<PlannedSession<'_>> {
        vec![PlannedSession {
            model: self.model,
            // The length of the conversation is unknown.
            positions: 1,
            kind: self.args.kv.kv,
        }]
    }

    fn run<E: Executor>(mut self, executor: &E) -> Result<(), Failure> {
        let path = self.args.model.path();
        if !executor.has_own_memory() {
            check_memory(path, &self.sessions(), self.args.threads.count())?;
        }
        let setting = setting_for_fraction(self.model, self.args.fraction).in_file(path)?;
        let model = loaded(path, executor.load(self.model))?;
        let kv = KvOptions::new(self.args.kv.kv);
        let session = Session::with_kv_of(model, executor.backend(), self.context, &kv);
        let mut session = session.in_file(path)?;
        session.set(setting);
        print_device_remarks(executor);
        let control = StopControl::install();
        let mut reader = LineReader::new();
        let mut messages = Vec::new();
        // Tokens that the session has read.
        let mut read = Vec::new();
        while let Some(line) = reader.next_message()? {
            match line.trim() {
                "" => continue,
                "/exit" | "/quit" | "/bye" => break,
                "/reset" | "/clear" => {
                    messages.clear();
                    say!("(the conversation is forgotten)");
                    continue;
                }
                command if command.starts_with('/') && !command.contains(char::is_whitespace) => {
                    say!("{command}: there are /reset and /exit");
                    continue;
                }
                _ => messages.push(Message::user(&line)),
            }
            let tokens = match self.fit(&mut messages) {
                Ok(Some(tokens)) => tokens,
                Ok(None) => {
                    messages.pop();
                    continue;
                }
                Err(error) => {
                    say!("htc: {}", shorten_message(&error.to_string()));
                    messages.pop();
                    continue;
                }
            };
            let new = rewind(&mut session, &mut read, &tokens).in_file(path)?;
            let answer = self.answer(&mut session, &tokens[new..], &control)?;
            if !answer.is_read {
                break;
            }
            read = tokens;
            read.extend(&answer.tokens);
            // The session has not read the last token.
            read.truncate(session.position());
            say!("{}", describe(&answer.summary));
            messages.push(Message::assistant(answer.text.trim_end()));
        }
        Ok(())
    }
}

struct Answer {
    text: String,
    tokens: Vec<u32>,
    summary: GenerateSummary,
    /// False if nobody reads the answers any more.
    is_read: bool,
}

impl ChatWork<'_> {
    /// Reads new tokens and writes the answer while it is generated.
    fn answer<B: Backend>(
        &mut self,
        session: &mut Session<B>,
        tokens: &[u32],
        control: &StopControl,
    ) -> Result<Answer, Failure> {
        let path = self.args.model.path();
        let mut limits = GenerateLimits::default();
        limits.tokens = self.args.tokens.limit();
        limits.positions = Some(self.context);
        control.begin();
        let (tokenizer, sampler) = (self.tokenizer, &mut self.sampler);
        let generator = Generator::new(session, tokenizer, sampler, tokens, limits);
        let mut generator = generator.in_file(path)?;
        let mut out = StandardOutput::new();
        let (mut text, mut tokens) = (String::new(), Vec::new());
        let mut written = Ok(());
        while !control.is_stopped()
            && let Some(token) = generator.step().in_file(path)?
        {
            tokens.push(token.token);
            text += &token.text;
            if let Err(error) = out.write_text(&token.text) {
                // The reader may have gone, and with it the conversation.
                written = Err(error);
                break;
            }
        }
        let (rest, summary) = generator.finish();
        text += &rest;
        let written = written.and_then(|()| out.write_text(&format!("{rest}\n")));
        control.end();
        let is_read = written.is_ok();
        answered(written)?;
        Ok(Answer {
            text,
            tokens,
            summary,
            is_read,
        })
    }
}

/// Keeps of a session what the new tokens begin with, and returns how many those are; at least one
/// token is left to read.
fn rewind<B: Backend>(
    session: &mut Session<B>,
    read: &mut Vec<u32>,
    tokens: &[u32],
) -> Result<usize, htc_loader::ExecError> {
    let common = read.iter().zip(tokens).take_while(|(a, b)| a == b).count();
    let common = common.min(tokens.len().saturating_sub(1));
    // A KV cache in bases cannot be shortened.
    let kept = match session.truncate(common) {
        Ok(()) => common,
        Err(_) => {
            session.reset();
            0
        }
    };
    read.truncate(kept);
    Ok(kept)
}

fn describe(summary: &GenerateSummary) -> String {
    let why = match summary.stop {
        Stop::Limit => ", -n reached",
        Stop::Context => ", the context is full",
        Stop::Receiver => ", stopped",
        _ => "",
    };
    match summary.decode_speed() {
        Some(speed) => format!("({} tokens, {speed:.1} per second{why})", summary.tokens),
        None => format!("({} tokens{why})", summary.tokens),
    }
}

const IDLE: u8 = 0;
const ANSWERING: u8 = 1;
const STOPPED: u8 = 2;

/// Ctrl-C: stops an answer; ends the program otherwise, or if the answer does not stop.
#[derive(Clone)]
struct StopControl(Arc<AtomicU8>);

impl StopControl {
    fn install() -> StopControl {
        let control = StopControl(Arc::new(AtomicU8::new(IDLE)));
        let state = Arc::clone(&control.0);
        let installed = ctrlc::try_set_handler(move || {
            let stopped =
                state.compare_exchange(ANSWERING, STOPPED, Ordering::SeqCst, Ordering::SeqCst);
            if stopped.is_err() {
                say!("");
                process::exit(i32::from(ErrorKind::Interrupted.exit_code()));
            }
        });
        if let Err(error) = installed {
            say!("htc: warning: Ctrl-C ends the conversation: {error}");
        }
        control
    }

    fn begin(&self) {
        self.0.store(ANSWERING, Ordering::SeqCst);
    }

    fn is_stopped(&self) -> bool {
        self.0.load(Ordering::SeqCst) == STOPPED
    }

    fn end(&self) {
        self.0.store(IDLE, Ordering::SeqCst);
    }
}

/// Reads messages from standard input, with a prompt on a terminal.
struct LineReader {
    terminal: bool,
}

impl LineReader {
    fn new() -> LineReader {
        let terminal = io::stdin().is_terminal();
        if terminal {
            say!("/reset forgets the conversation, /exit ends it, Ctrl-C stops an answer");
        }
        LineReader { terminal }
    }

    /// Returns the next message; lines that end in a backslash go on. `None` at the end.
    fn next_message(&mut self) -> Result<Option<String>, Failure> {
        let mut message = String::new();
        let mut prompt = "> ";
        loop {
            let Some(line) = self.next_line(prompt).map_err(Failure::Input)? else {
                return Ok(Some(message).filter(|message| !message.is_empty()));
            };
            match line.strip_suffix('\\') {
                Some(begun) => {
                    message += begun;
                    message.push('\n');
                    prompt = ". ";
                }
                None => return Ok(Some(message + &line)),
            }
        }
    }

    fn next_line(&mut self, prompt: &str) -> io::Result<Option<String>> {
        if self.terminal {
            let mut err = io::stderr().lock();
            err.write_all(prompt.as_bytes())?;
            err.flush()?;
        }
        let mut line = String::new();
        let mut stdin = io::stdin().lock().take(MAX_LINE_BYTES + 1);
        let found = stdin.read_line(&mut line)?;
        if found as u64 > MAX_LINE_BYTES {
            let longest = format!("a line has more than {MAX_LINE_BYTES} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, longest));
        }
        if found == 0 {
            if self.terminal {
                say!("");
            }
            return Ok(None);
        }
        let line = line.trim_end_matches(['\n', '\r']);
        Ok(Some(line.to_owned()))
    }
}
