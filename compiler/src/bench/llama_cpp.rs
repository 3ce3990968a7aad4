//! llama.cpp, by its `llama-bench`: a program of its own for every measurement.
//!
//! Prefill and decode are two runs of it, `-p P -n 0` and `-p 0 -n N -d P`; builds that know no depth (`-d`), such as
//! those of ik_llama.cpp, decode from an empty context, which is said. It computes once before its clock starts, and
//! nothing with the logits; end to end follows from the two speeds.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use htc_formats::escape::escaped;
use htc_loader::kv::KvType;
use htc_loader::tokenizer::Tokenizer;
use serde::Deserialize;
use thiserror::Error;

use super::runner::{Mark, Runner, Timing};
use super::task::Task;
use super::{BenchError, LOOKS_APART, cancelled};
use crate::event::Cancel;

/// The program's name.
pub const PROGRAM: &str = "llama-bench";

/// Bytes that are read of what it prints: a result has two thousand.
const MAX_OUTPUT: u64 = 1 << 20;

/// Characters of what it says of its build.
const MAX_BUILD: usize = 80;

/// How long it may take to say what it can do.
const HELP_LIMIT: Duration = Duration::from_secs(30);

/// Why llama.cpp cannot be measured. The message of each is one line.
#[derive(Debug, Error)]
pub enum LlamaCppError {
    /// No such program.
    #[error(
        "{}: no {PROGRAM} there, nor in a folder `bin` in it; give that program of llama.cpp, or the folder of a build of it", .0.display()
    )]
    Absent(PathBuf),
    /// It cannot be started.
    #[error("{}: cannot be started: {error}; give a {PROGRAM} that this machine executes", path.display())]
    Start {
        /// The program.
        path: PathBuf,
        /// What the system says.
        error: std::io::Error,
    },
    /// It is another program.
    #[error("{}: its help knows no -p, -n and -o, which {PROGRAM}'s does; give that program", .0.display())]
    Other(PathBuf),
    /// It failed.
    #[error("{}: ended with {status}: {said}; try it by itself: {command}", path.display())]
    Failed {
        /// The program.
        path: PathBuf,
        /// How it ended.
        status: String,
        /// Its last words.
        said: String,
        /// What was started.
        command: String,
    },
    /// It took too long.
    #[error("{}: not finished after {} s; ask for less, or give `time_limit` more", path.display(), limit.as_secs())]
    TooLong {
        /// The program.
        path: PathBuf,
        /// The limit.
        limit: Duration,
    },
    /// What it printed is no result.
    #[error(
        "{}: expected JSON with a result of -p {prompt} -n {tokens}, found {found}; give a {PROGRAM} of llama.cpp", path.display()
    )]
    Garbage {
        /// The program.
        path: PathBuf,
        /// Tokens to read.
        prompt: usize,
        /// Tokens to write.
        tokens: usize,
        /// What it looks like.
        found: String,
    },
}

/// llama.cpp with a model.
pub struct LlamaCpp {
    program: PathBuf,
    model: PathBuf,
    name: String,
    /// The vocabulary that prompts are counted in.
    tokenizer: Tokenizer,
    threads: usize,
    kv_type: KvType,
    limit: Duration,
    depth: bool,
    build: Option<String>,
}

/// What it says of a measurement.
#[derive(Debug, Deserialize)]
struct Found {
    n_prompt: usize,
    n_gen: usize,
    avg_ts: f64,
    build_commit: Option<String>,
    backends: Option<String>,
}

/// The program itself, or the one in the folder of a build.
fn program(path: &Path) -> Result<PathBuf, LlamaCppError> {
    let tries = [
        path.to_owned(),
        path.join(PROGRAM),
        path.join("bin").join(PROGRAM),
    ];
    let found = tries.into_iter().find(|path| path.is_file());
    let found = found.ok_or_else(|| LlamaCppError::Absent(path.to_owned()))?;
    // A bare name is a file of this folder, which would be looked for on the path.
    match found.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Ok(Path::new(".").join(found)),
        _ => Ok(found),
    }
}

impl LlamaCpp {
    /// The program at a place, or in a folder, with a model in a GGUF; prompts are counted by `tokenizer`, and a
    /// measurement that takes longer than `limit` is ended.
    ///
    /// # Errors
    /// [`BenchError`] where it cannot be started or is another program.
    pub fn new(
        path: &Path,
        (model, name): (&Path, String),
        tokenizer: Tokenizer,
        (threads, kv_type): (usize, KvType),
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<LlamaCpp, BenchError> {
        let mut this = LlamaCpp {
            program: program(path)?,
            model: model.to_owned(),
            name,
            tokenizer,
            threads,
            kv_type,
            limit,
            depth: false,
            build: None,
        };
        let mut command = Command::new(&this.program);
        let help = this.output(command.arg("--help"), HELP_LIMIT, cancel)?;
        let words: Vec<&str> = help.split([' ', ',', '\n']).collect();
        if !["-p", "-n", "-o"]
            .iter()
            .all(|option| words.contains(option))
        {
            return Err(LlamaCppError::Other(this.program).into());
        }
        this.depth = words.contains(&"--n-depth");
        Ok(this)
    }

    /// Whether it decodes behind a prompt; else from an empty context.
    pub fn has_depth(&self) -> bool {
        self.depth
    }

    /// Which build it is, once something was measured.
    pub fn build(&self) -> Option<&str> {
        self.build.as_deref()
    }

    /// Measures reading `prompt` tokens, or writing `tokens` behind `depth`; what `passes` tokens take at that speed.
    fn measure(
        &mut self,
        (prompt, tokens, depth): (usize, usize, usize),
        passes: usize,
        cancel: &Cancel,
    ) -> Result<Duration, BenchError> {
        let mut command = Command::new(&self.program);
        command.arg("-m").arg(&self.model);
        let number = |n: usize| n.to_string();
        command.args(["-p", &number(prompt), "-n", &number(tokens)]);
        if self.depth && depth > 0 {
            command.args(["-d", &number(depth)]);
        }
        command.args([
            "-r",
            "1",
            "-o",
            "json",
            "-t",
            &number(self.threads),
            "-ngl",
            "0",
        ]);
        if self.kv_type != KvType::F16 {
            let name = self.kv_type.name();
            command.args(["-ctk", name, "-ctv", name]);
        }
        let output = self.output(&mut command, self.limit, cancel)?;
        let garbage = |found: String| LlamaCppError::Garbage {
            path: self.program.clone(),
            prompt,
            tokens,
            found,
        };
        let found: Vec<Found> =
            serde_json::from_str(&output).map_err(|error| match output.trim() {
                "" => garbage("nothing".into()),
                _ => garbage(format!("what is none ({})", escaped(&error.to_string()))),
            })?;
        let mut of_task = found
            .into_iter()
            .filter(|f| (f.n_prompt, f.n_gen) == (prompt, tokens));
        let of_task = of_task
            .next()
            .ok_or_else(|| garbage("results of something else".into()))?;
        // Zero, a negative speed and what no clock shows have no time.
        let time = Duration::try_from_secs_f64(passes as f64 / of_task.avg_ts);
        let time = time.map_err(|_| garbage(format!("{} tokens/s", of_task.avg_ts)))?;
        let build = of_task.build_commit;
        let build = build.unwrap_or_else(|| "of an unknown commit".into());
        let build = match of_task.backends {
            Some(backends) => format!("{build} ({backends})"),
            None => build,
        };
        self.build = Some(build.chars().take(MAX_BUILD).collect());
        Ok(time)
    }

    /// What it prints on standard output, when it has ended by itself and well.
    fn output(
        &self,
        command: &mut Command,
        limit: Duration,
        cancel: &Cancel,
    ) -> Result<String, BenchError> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // With a group of its own it can be ended together with what it starts.
        #[cfg(unix)]
        {
            use std::os::unix::process::CommandExt as _;
            command.process_group(0);
        }
        let path = || self.program.clone();
        let child = command.spawn();
        let child = child.map_err(|error| LlamaCppError::Start {
            path: path(),
            error,
        })?;
        let mut running = Running {
            child,
            ended: false,
        };
        let out = read(running.child.stdout.take());
        let err = read(running.child.stderr.take());
        let started = Instant::now();
        let status = loop {
            cancelled(cancel)?;
            match running.child.try_wait() {
                Ok(Some(status)) => {
                    running.ended = true;
                    break status;
                }
                Ok(None) => {}
                Err(error) => {
                    return Err(LlamaCppError::Start {
                        path: path(),
                        error,
                    }
                    .into());
                }
            }
            if started.elapsed() > limit {
                return Err(LlamaCppError::TooLong {
                    path: path(),
                    limit,
                }
                .into());
            }
            thread::sleep(LOOKS_APART.min(limit));
        };
        // What it has started may hold the pipes open.
        let left = limit
            .saturating_sub(started.elapsed())
            .max(Duration::from_secs(1));
        let text = |from: Receiver<Vec<u8>>| from.recv_timeout(left).ok();
        let (Some(out), Some(err)) = (text(out), text(err)) else {
            return Err(LlamaCppError::TooLong {
                path: path(),
                limit,
            }
            .into());
        };
        let [out, err] = [out, err].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        // Where its help is asked for, some builds end as if something was wrong.
        let asked_for_help = command.get_args().any(|argument| argument == "--help");
        if !status.success() && !asked_for_help {
            let said = err.trim().lines().last().unwrap_or("without a word");
            let said: String = said.chars().take(200).collect();
            return Err(LlamaCppError::Failed {
                path: path(),
                status: status.to_string(),
                said: escaped(&said).into_owned(),
                command: escaped(&format!("{command:?}")).into_owned(),
            }
            .into());
        }
        Ok(match asked_for_help {
            true => out + "\n" + &err,
            false => out,
        })
    }
}

/// A program that ends with whoever waits for it.
struct Running {
    child: Child,
    /// It was waited for: its number may be another's by now.
    ended: bool,
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        #[cfg(unix)]
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            // What fails here has ended already.
            _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Reads what a program prints, at most so much, from a thread of its own: it must not wait for us.
fn read(stream: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            // What was read before an error is what there is; the rest is read and forgotten.
            _ = stream.by_ref().take(MAX_OUTPUT).read_to_end(&mut bytes);
            _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
        // Nobody may wait for it any more.
        _ = sender.send(bytes);
    });
    receiver
}

impl Runner for LlamaCpp {
    fn name(&self) -> &str {
        &self.name
    }

    fn context(&self) -> Option<usize> {
        None
    }

    fn prepare(&mut self, _: Task) -> Result<(), BenchError> {
        Ok(())
    }

    /// It loads the model and computes once before its clock starts.
    fn is_metered(&self) -> bool {
        false
    }

    fn run(&mut self, task: Task, mark: Mark, cancel: &Cancel) -> Result<Timing, BenchError> {
        let prompt = task.read(&self.tokenizer).len();
        let tokens = task.tokens();
        let prefill = self.measure((prompt, 0, 0), prompt, cancel)?;
        mark()?;
        let decode = match tokens.saturating_sub(1) {
            0 => Duration::ZERO,
            passes => self.measure((0, tokens, prompt), passes, cancel)?,
        };
        Ok(Timing {
            prompt_tokens: prompt,
            tokens,
            prefill,
            decode,
        })
    }
}
