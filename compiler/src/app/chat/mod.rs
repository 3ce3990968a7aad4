//! Chat templates: conversion of conversations to prompts.
//!
//! A chat template is a program from a model file. It runs in a separate process, since no Jinja
//! interpreter bounds the allocations of a template.

pub mod date;
mod python;
mod said;
mod template;

use std::io::{self, Read, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub use said::{RenderedConversation, render_with_ranges};
pub use template::{Conversation, Message};

const ADDRESS_SPACE_LIMIT: u64 = 1 << 30;

const TIME_LIMIT: Duration = Duration::from_secs(10);

/// Name of the subcommand that renders a template.
pub const SUBCOMMAND: &str = "render-chat-template";

/// Renders a conversation up to the start of the model's answer: its text, or the reason why the
/// template fails or exceeds the limits of time, memory or text length.
///
/// # Errors
/// The process fails.
pub fn render(conversation: &Conversation) -> io::Result<Result<String, String>> {
    let mut child = Command::new(std::env::current_exe()?)
        .arg(SUBCOMMAND)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let request = serde_json::to_vec(conversation).map_err(io::Error::from)?;
    // Avoids a deadlock on full pipes.
    let (mut stdin, stdout, stderr) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let limit = template::MAX_TEXT_BYTES as u64 + 1;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            if let Some(stdin) = &mut stdin {
                // If the child has exited, its status has the reason.
                let _ = stdin.write_all(&request);
            }
            drop(stdin);
        });
        let text = scope.spawn(move || read(stdout, limit));
        let words = scope.spawn(move || read(stderr, 1 << 12));
        let started = Instant::now();
        let status = loop {
            match child.try_wait()? {
                Some(status) => break Some(status),
                None if started.elapsed() > TIME_LIMIT => {
                    child.kill()?;
                    child.wait()?;
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        let joined = |thread: std::thread::ScopedJoinHandle<'_, io::Result<Vec<u8>>>| {
            thread.join().unwrap_or_else(|_| Ok(Vec::new()))
        };
        let (text, words) = (joined(text)?, joined(words)?);
        Ok(match status {
            None => Err(format!("it takes longer than {} s", TIME_LIMIT.as_secs())),
            Some(status) if status.success() => {
                String::from_utf8(text).map_err(|_| "it writes no UTF-8".to_owned())
            }
            Some(status) if status.code() == Some(1) => {
                Err(String::from_utf8_lossy(&words).trim().to_owned())
            }
            Some(_) => Err("it takes more memory than any conversation needs".to_owned()),
        })
    })
}

fn read(from: Option<impl Read>, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.take(limit).read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Child side of [`render`]: reads a conversation from standard input and writes its text.
pub fn serve() -> Result<(), String> {
    limit_resources().map_err(|error| format!("memory cannot be limited: {error}"))?;
    let mut request = Vec::new();
    let stdin = io::stdin().lock();
    stdin
        .take(ADDRESS_SPACE_LIMIT / 8)
        .read_to_end(&mut request)
        .map_err(|error| error.to_string())?;
    let conversation: Conversation =
        serde_json::from_slice(&request).map_err(|error| error.to_string())?;
    let text = template::render(&conversation)?;
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    written.map_err(|error| error.to_string())
}

/// The parent may exit before the timeout.
#[cfg(unix)]
fn limit_resources() -> io::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    // On macOS every process maps more than that.
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
    let limits = [
        (Resource::As, ADDRESS_SPACE_LIMIT),
        (Resource::Cpu, TIME_LIMIT.as_secs()),
    ];
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "freebsd")))]
    let limits = [(Resource::Cpu, TIME_LIMIT.as_secs())];
    for (resource, limit) in limits {
        // An inherited limit cannot be raised.
        let inherited = getrlimit(resource).maximum.unwrap_or(u64::MAX);
        let limit = Some(limit.min(inherited));
        setrlimit(
            resource,
            Rlimit {
                current: limit,
                maximum: limit,
            },
        )?;
    }
    Ok(())
}

/// Not supported; time stays limited by the parent.
#[cfg(not(unix))]
fn limit_resources() -> io::Result<()> {
    Ok(())
}
