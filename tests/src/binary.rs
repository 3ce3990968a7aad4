//! Runs the binary with arguments, resource limits and a deadline.

use std::ffi::{OsStr, OsString};
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(120);

/// Address space for runs on hostile files, far less than the counts in such files would allocate.
pub const HOSTILE_MEMORY: u64 = 600 << 20;

/// Deadline for runs on hostile files.
pub const HOSTILE_DEADLINE: Duration = Duration::from_secs(20);

/// Returns the path of the binary.
pub fn path() -> PathBuf {
    let path = match std::env::var_os("HTC_BIN") {
        Some(path) => PathBuf::from(path),
        None => {
            let test = std::env::current_exe().unwrap();
            let profile = test.parent().and_then(Path::parent).unwrap();
            profile.join("htc")
        }
    };
    assert!(
        path.is_file(),
        "{} does not exist: build it with `cargo build --release` (and run the tests with \
         --release), or name it in HTC_BIN",
        path.display()
    );
    path
}

/// Spares the tester's home.
pub(crate) fn next_to_binary(name: &str) -> PathBuf {
    path().with_file_name(name)
}

/// `htc!["compile", &input, "-o", &output]`: a run with arguments that are strings or paths.
#[macro_export]
macro_rules! htc {
    ($($argument:expr),* $(,)?) => {
        $crate::Htc::new()$(.arg($argument))*
    };
}

/// Builder for a run of the binary.
#[derive(Debug)]
pub struct Htc {
    arguments: Vec<OsString>,
    input: Option<Vec<u8>>,
    limits: Vec<String>,
    deadline: Duration,
    folder: Option<PathBuf>,
    user: Option<u32>,
    variables: Vec<(&'static str, Option<OsString>)>,
    stdout: Option<Stdio>,
    as_typed: bool,
}

/// Options of `compile` and `plan` that only methods with factors have.
const FACTOR_OPTIONS: [&str; 15] = [
    "--first-positions",
    "--ratio",
    "--rank",
    "--parameters",
    "--bytes",
    "--mean-rank",
    "--allocator",
    "--rank-floor",
    "--rank-cap",
    "--projections",
    "--factor-type",
    "--dense-type",
    "--embedding-type",
    "--gauge",
    "--sink",
];

impl Default for Htc {
    fn default() -> Self {
        Htc::new()
    }
}

impl Htc {
    /// Creates a run without arguments and with empty standard input.
    pub fn new() -> Self {
        Htc {
            arguments: Vec::new(),
            input: None,
            limits: Vec::new(),
            deadline: DEADLINE,
            folder: None,
            user: None,
            variables: vec![
                (
                    "XDG_STATE_HOME",
                    Some(next_to_binary("state-of-tests").into()),
                ),
                (
                    "XDG_CACHE_HOME",
                    Some(next_to_binary("cache-of-tests").into()),
                ),
                // Runs are the same on every machine.
                ("CUDA_VISIBLE_DEVICES", Some("-1".into())),
            ],
            stdout: None,
            as_typed: false,
        }
    }

    /// Runs the program with these arguments alone. Otherwise a compilation says everything (`-v`),
    /// and has the method low-rank if options of factors do not name one.
    #[must_use]
    pub fn as_typed(mut self) -> Self {
        self.as_typed = true;
        self
    }

    /// Returns the arguments that are added to those of a test.
    fn added_arguments(&self) -> Vec<&'static str> {
        let command = self.arguments.first().and_then(|command| command.to_str());
        let plans = matches!(command, Some("compile" | "plan"));
        if self.as_typed || !plans || self.arguments.len() < 3 {
            return Vec::new();
        }
        let given = |options: &[&str]| {
            self.arguments
                .iter()
                .any(|argument| options.iter().any(|option| argument == option))
        };
        let mut added = Vec::new();
        if given(&FACTOR_OPTIONS) && !given(&["--method", "--plan", "--help", "-h"]) {
            added.extend(["--method", "low-rank"]);
        }
        if command == Some("compile") {
            added.push("--verbose");
        }
        added
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args<T: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = T>) -> Self {
        arguments.into_iter().fold(self, Htc::arg)
    }

    /// Pipes bytes into standard input.
    #[must_use]
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Some(bytes.into());
        self
    }

    /// Redirects standard output.
    #[must_use]
    pub fn stdout(mut self, to: impl Into<Stdio>) -> Self {
        self.stdout = Some(to.into());
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn in_folder(mut self, folder: &Path) -> Self {
        self.folder = Some(folder.to_owned());
        self
    }

    /// Runs as another user; requires root.
    #[must_use]
    pub fn as_user(mut self, id: u32) -> Self {
        self.user = Some(id);
        self
    }

    /// Sets or removes an environment variable.
    #[must_use]
    pub fn env(mut self, name: &'static str, value: Option<&Path>) -> Self {
        self.variables.push((name, value.map(Into::into)));
        self
    }

    /// Sets the deadline.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Limits the address space.
    #[must_use]
    pub fn memory(mut self, bytes: u64) -> Self {
        self.limits.push(format!("ulimit -v {}", bytes / 1024));
        self
    }

    /// Limits allocations; files mapped read-only do not count.
    #[must_use]
    pub fn allocations(mut self, bytes: u64) -> Self {
        self.limits.push(format!("ulimit -d {}", bytes / 1024));
        self
    }

    /// Limits the size of files in blocks of the shell (512 bytes or 1 KiB); later writes fail.
    #[must_use]
    pub fn file_blocks(mut self, blocks: u64) -> Self {
        self.limits
            .push(format!("trap '' XFSZ; ulimit -f {blocks}"));
        self
    }

    /// Sets the limits for hostile files.
    #[must_use]
    pub fn with_hostile_limits(self) -> Self {
        self.memory(HOSTILE_MEMORY).deadline(HOSTILE_DEADLINE)
    }

    fn command(&self) -> Command {
        let mut command = if self.limits.is_empty() {
            Command::new(path())
        } else {
            let mut shell = Command::new("sh");
            let script = format!("{} && exec \"$@\"", self.limits.join(" && "));
            shell.arg("-c").arg(script).arg("sh").arg(path());
            shell
        };
        command.args(&self.arguments).args(self.added_arguments());
        if let Some(folder) = &self.folder {
            command.current_dir(folder);
        }
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command.env_remove("RUST_BACKTRACE");
        for (name, value) in &self.variables {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command
    }

    /// Starts the program without waiting for it.
    pub fn spawn(mut self) -> Child {
        let mut command = self.command();
        command
            .stdin(Stdio::null())
            .stdout(self.stdout.take().unwrap_or_else(Stdio::piped))
            .stderr(Stdio::piped());
        command.spawn().unwrap()
    }

    /// Runs the program to its end.
    #[must_use]
    pub fn run(mut self) -> Outcome {
        let mut command = self.command();
        let shown = format!("{command:?}");
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(self.stdout.take().unwrap_or_else(Stdio::piped))
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{shown}: {error}"));
        let mut stdin = child.stdin.take().unwrap();
        let input = self.input.take().unwrap_or_default();
        let writer = thread::spawn(move || drop(stdin.write_all(&input)));
        let stdout = read_all(child.stdout.take());
        let stderr = read_all(child.stderr.take());
        let status = wait(&mut child, self.deadline, &shown);
        writer.join().unwrap();
        Outcome {
            command: shown,
            status,
            stdout: stdout.join().unwrap(),
            stderr: String::from_utf8(stderr.join().unwrap()).expect("stderr is UTF-8"),
        }
    }
}

fn read_all(stream: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            stream.read_to_end(&mut bytes).unwrap();
        }
        bytes
    })
}

/// Waits for a program, and kills it at its deadline.
pub fn wait(child: &mut Child, deadline: Duration, label: &str) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if started.elapsed() > deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{label}: not finished after {deadline:?}");
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Result of a run.
#[derive(Debug)]
pub struct Outcome {
    command: String,
    /// Exit status.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: String,
}

impl Outcome {
    /// Returns the exit code; `None` if a signal ended the program.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    fn ended(&self) -> String {
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("exit code {code}"),
            (None, signal) => format!("signal {signal:?}"),
        }
    }

    /// Asserts success.
    #[track_caller]
    pub fn assert_ok(self) -> Self {
        assert!(
            self.status.success() && !self.stderr.contains("panicked"),
            "{}: {}\n{}",
            self.command,
            self.ended(),
            self.stderr
        );
        self
    }

    /// Returns standard output as text.
    #[track_caller]
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("stdout is UTF-8")
    }

    /// Asserts success and returns standard output as one JSON value.
    #[track_caller]
    pub fn json(self) -> Value {
        let outcome = self.assert_ok();
        serde_json::from_slice(&outcome.stdout).unwrap_or_else(|error| {
            panic!(
                "{}: stdout is no JSON: {error}\n{}",
                outcome.command,
                outcome.text()
            )
        })
    }

    /// Asserts failure with an exit code and one line on standard error that contains all `words`,
    /// ignoring case.
    #[track_caller]
    pub fn assert_refused(&self, code: i32, words: &[&str]) {
        let about = format!("{}: {}\n{}", self.command, self.ended(), self.stderr);
        assert_eq!(self.status.code(), Some(code), "{about}");
        assert!(!self.stderr.contains("panicked"), "panicked: {about}");
        // Notes on inputs may precede the error.
        let is_note = |line: &&str| line.starts_with("htc: note: ");
        let lines: Vec<&str> = self.stderr.trim_end().lines().skip_while(is_note).collect();
        let [line] = lines[..] else {
            panic!("not one line: {about}");
        };
        assert!(self.stderr.ends_with('\n'), "not one line: {about}");
        assert!(
            !line.contains(char::is_control),
            "control characters in {about}"
        );
        let line = line.to_lowercase();
        for word in words {
            assert!(
                line.contains(&word.to_lowercase()),
                "{word:?} is missing from: {about}"
            );
        }
        assert!(self.stdout.is_empty(), "stdout holds something: {about}");
    }
}
