//! Runs llama.cpp's `llama-bench` as a separate process.
//!
//! Prefill and decode are two runs, `-p P -n 0` and `-p 0 -n N -d P`; builds without `-d` decode
//! from an empty context. End to end follows from the two speeds.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use htc_formats::escape::escape;
use htc_loader::kv::KvType;
use htc_loader::tokenizer::Tokenizer;
use serde::Deserialize;

use super::runner::{RunWatch, Runner, Timing};
use super::task::Task;
use super::{BenchError, CANCEL_POLL_INTERVAL, check_cancelled};
use crate::event::CancellationToken;

/// Name of the program.
pub const PROGRAM: &str = "llama-bench";

const MAX_OUTPUT: u64 = 1 << 20;

const MAX_BUILD: usize = 80;

const HELP_LIMIT: Duration = Duration::from_secs(30);

/// Options of a run of `llama-bench`.
#[derive(Clone, Copy, Debug)]
pub struct LlamaBenchOptions {
    /// Threads.
    pub threads: usize,
    /// Type of the KV cache.
    pub kv_type: KvType,
    /// Time limit per measurement.
    pub time_limit: Duration,
}

/// A test of `llama-bench`.
#[derive(Clone, Copy)]
struct LlamaBenchTest {
    /// Prompt tokens.
    prompt: usize,
    /// Tokens to write.
    tokens: usize,
    /// Positions in the KV cache before them.
    depth: usize,
}

/// llama.cpp with a model.
pub struct LlamaCpp {
    program: PathBuf,
    model: PathBuf,
    name: String,
    tokenizer: Tokenizer,
    options: LlamaBenchOptions,
    depth: bool,
    build: Option<String>,
}

#[derive(Debug, Deserialize)]
struct RawResult {
    n_prompt: usize,
    n_gen: usize,
    avg_ts: f64,
    build_commit: Option<String>,
    backends: Option<String>,
}

fn find_program(path: &Path) -> Result<PathBuf, BenchError> {
    let tries = [
        path.to_owned(),
        path.join(PROGRAM),
        path.join("bin").join(PROGRAM),
    ];
    let found = tries.into_iter().find(|path| path.is_file());
    let found = found.ok_or_else(|| BenchError::ProgramNotFound(path.to_owned()))?;
    // A bare name would be searched on PATH.
    match found.parent() {
        Some(folder) if folder.as_os_str().is_empty() => Ok(Path::new(".").join(found)),
        _ => Ok(found),
    }
}

impl LlamaCpp {
    /// Prepares `llama-bench` (a path or the folder of a build) for a GGUF model.
    ///
    /// # Errors
    /// [`BenchError`] if it cannot be started or is another program.
    pub fn new(
        path: &Path,
        model: &Path,
        name: String,
        tokenizer: Tokenizer,
        options: LlamaBenchOptions,
        cancel: &CancellationToken,
    ) -> Result<LlamaCpp, BenchError> {
        let mut this = LlamaCpp {
            program: find_program(path)?,
            model: model.to_owned(),
            name,
            tokenizer,
            options,
            depth: false,
            build: None,
        };
        let mut command = Command::new(&this.program);
        let help = this.output(command.arg("--help"), HELP_LIMIT, cancel)?;
        let words: Vec<&str> = help.split([' ', ',', '\n']).collect();
        let known = |option: &&str| words.contains(option);
        if !["-p", "-n", "-o"].iter().all(known) {
            return Err(BenchError::NotLlamaBench(this.program));
        }
        this.depth = words.contains(&"--n-depth");
        Ok(this)
    }

    /// Returns true if it can decode after a prompt.
    pub fn has_depth(&self) -> bool {
        self.depth
    }

    /// Returns the build, after the first measurement.
    pub fn build(&self) -> Option<&str> {
        self.build.as_deref()
    }

    fn measure(
        &mut self,
        test: LlamaBenchTest,
        passes: usize,
        cancel: &CancellationToken,
    ) -> Result<Duration, BenchError> {
        let LlamaBenchTest {
            prompt,
            tokens,
            depth,
        } = test;
        let mut command = Command::new(&self.program);
        command.arg("-m").arg(&self.model);
        let number = |n: usize| n.to_string();
        command.args(["-p", &number(prompt), "-n", &number(tokens)]);
        if self.depth && depth > 0 {
            command.args(["-d", &number(depth)]);
        }
        let threads = number(self.options.threads);
        command.args(["-r", "1", "-o", "json", "-t", &threads, "-ngl", "0"]);
        if self.options.kv_type != KvType::F16 {
            let name = self.options.kv_type.name();
            command.args(["-ctk", name, "-ctv", name]);
        }
        let output = self.output(&mut command, self.options.time_limit, cancel)?;
        let garbage = |found: String| BenchError::InvalidOutput {
            path: self.program.clone(),
            prompt,
            tokens,
            found,
        };
        let found: Vec<RawResult> =
            serde_json::from_str(&output).map_err(|error| match output.trim() {
                "" => garbage("nothing".into()),
                _ => garbage(format!("what is none ({})", escape(&error.to_string()))),
            })?;
        let is_wanted = |f: &RawResult| (f.n_prompt, f.n_gen) == (prompt, tokens);
        let of_task = found.into_iter().find(is_wanted);
        let of_task = of_task.ok_or_else(|| garbage("results of something else".into()))?;
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

    fn output(
        &self,
        command: &mut Command,
        limit: Duration,
        cancel: &CancellationToken,
    ) -> Result<String, BenchError> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // Allows to kill its children.
        #[cfg(unix)]
        {
            use std::os::unix::process::CommandExt as _;
            command.process_group(0);
        }
        let path = || self.program.clone();
        let failed = |error| BenchError::StartProgram {
            path: path(),
            error,
        };
        let too_long = || BenchError::ProgramTooLong {
            path: path(),
            limit,
        };
        let child = command.spawn().map_err(failed)?;
        let mut running = RunningProcess {
            child,
            ended: false,
        };
        let out = spawn_reader(running.child.stdout.take());
        let err = spawn_reader(running.child.stderr.take());
        let started = Instant::now();
        let status = loop {
            check_cancelled(cancel)?;
            if let Some(status) = running.child.try_wait().map_err(failed)? {
                running.ended = true;
                break status;
            }
            if started.elapsed() > limit {
                return Err(too_long());
            }
            thread::sleep(CANCEL_POLL_INTERVAL.min(limit));
        };
        // Child processes may hold the pipes open.
        let left = limit
            .saturating_sub(started.elapsed())
            .max(Duration::from_secs(1));
        let text = |from: Receiver<Vec<u8>>| from.recv_timeout(left).ok();
        let (Some(out), Some(err)) = (text(out), text(err)) else {
            return Err(too_long());
        };
        let [out, err] = [out, err].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        let asked_for_help = command.get_args().any(|argument| argument == "--help");
        if !status.success() && !asked_for_help {
            let said = err.trim().lines().last().unwrap_or("without a word");
            let said: String = said.chars().take(200).collect();
            return Err(BenchError::ProgramFailed {
                path: path(),
                status: status.to_string(),
                stderr_line: escape(&said).into_owned(),
                command: escape(&format!("{command:?}")).into_owned(),
            });
        }
        Ok(if asked_for_help {
            out + "\n" + &err
        } else {
            out
        })
    }
}

struct RunningProcess {
    child: Child,
    /// The process id may be reused.
    ended: bool,
}

impl Drop for RunningProcess {
    fn drop(&mut self) {
        if self.ended {
            return;
        }
        #[cfg(unix)]
        if let Some(group) = rustix::process::Pid::from_raw(self.child.id() as i32) {
            _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

fn spawn_reader(stream: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            _ = stream.by_ref().take(MAX_OUTPUT).read_to_end(&mut bytes);
            _ = std::io::copy(&mut stream, &mut std::io::sink());
        }
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

    /// Loading and a warm-up run precede its clock.
    fn is_metered(&self) -> bool {
        false
    }

    fn run(&mut self, task: Task, watch: RunWatch) -> Result<Timing, BenchError> {
        let prompt = task.prompt_tokens(&self.tokenizer).len();
        let tokens = task.tokens();
        let of_prompt = LlamaBenchTest {
            prompt,
            tokens: 0,
            depth: 0,
        };
        let prefill = self.measure(of_prompt, prompt, watch.cancel)?;
        (watch.first_token)()?;
        let decode = match tokens.saturating_sub(1) {
            0 => Duration::ZERO,
            passes => {
                let of_tokens = LlamaBenchTest {
                    prompt: 0,
                    tokens,
                    depth: prompt,
                };
                self.measure(of_tokens, passes, watch.cancel)?
            }
        };
        Ok(Timing {
            prompt_tokens: prompt,
            tokens,
            prefill,
            decode,
        })
    }
}
