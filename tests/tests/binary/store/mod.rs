mod clean;
mod kept;
mod outputs;
mod planted;
mod shared;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use htc_tests::material::words;
use htc_tests::{Htc, Scratch, TinyModel, htc};

const WORK: &str = ".out.htz.htc-work";

const HANG_DEADLINE: Duration = Duration::from_secs(30);

fn pipe(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

struct Subject {
    scratch: Scratch,
    model: PathBuf,
    output: PathBuf,
}

impl Subject {
    fn new() -> Self {
        let scratch = Scratch::new();
        let model = scratch.file("model.gguf", TinyModel::default().bytes());
        let output = scratch.path("out.htz");
        Subject {
            scratch,
            model,
            output,
        }
    }

    fn compile(&self) -> Htc {
        let run = htc!["compile", &self.model, "-o", &self.output, "--rank", "16"];
        run.deadline(HANG_DEADLINE)
    }

    fn calibrated(&self) -> Htc {
        let text = self.scratch.file("text.txt", words(200));
        let run = self.compile().args(["--context", "16", "--calibration"]);
        let run = run.arg(text).arg("--cache").arg(self.scratch.path("cache"));
        run.args(["--gauge", "activation", "--bias", "off"])
    }

    fn fail_halfway(&self, run: impl Fn() -> Htc) -> u64 {
        let blocks = fail_halfway(run);
        assert!(!self.output.exists());
        blocks
    }

    fn expected(&self, run: impl Fn(&Subject) -> Htc) -> Vec<u8> {
        run(self).run().assert_ok();
        let bytes = fs::read(&self.output).unwrap();
        fs::remove_file(&self.output).unwrap();
        bytes
    }

    fn work_file(&self, extension: &str) -> PathBuf {
        let entries = fs::read_dir(self.scratch.path(WORK)).unwrap();
        let mut paths = entries.map(|entry| entry.unwrap().path());
        let found = paths.find(|path| path.extension().is_some_and(|of| of == extension));
        found.unwrap_or_else(|| panic!("no {extension}"))
    }

    fn cached_calibration(&self) -> PathBuf {
        let mut found = fs::read_dir(self.scratch.path("cache")).unwrap();
        let one = found.next().unwrap().unwrap().path();
        assert!(found.next().is_none());
        one
    }

    fn assert_complete(&self, expected: &[u8]) {
        assert!(fs::read(&self.output).unwrap() == expected, "other bytes");
    }
}

/// Fails after some work is finished; returns the limit in blocks.
fn fail_halfway(run: impl Fn() -> Htc) -> u64 {
    // Shells count blocks differently.
    let mut blocks: u64 = 10;
    while blocks < 4000 {
        let outcome = run().file_blocks(blocks).run();
        outcome.assert_refused(1, &[".htc-work"]);
        if outcome.stderr.contains("is kept in") {
            return blocks;
        }
        blocks += blocks.div_ceil(5);
    }
    panic!("nothing was finished");
}

struct ForeignFolder(PathBuf);

impl ForeignFolder {
    const NAMES: [&str; 6] = [
        "file",
        "head",
        "lock",
        "layer-0000",
        "layer-0009",
        "stream-0000",
    ];

    fn new(scratch: &Scratch) -> Self {
        let folder = scratch.path("precious");
        fs::create_dir(&folder).unwrap();
        for name in ForeignFolder::NAMES {
            fs::write(folder.join(name), "precious").unwrap();
        }
        ForeignFolder(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("file")
    }

    #[track_caller]
    fn assert_untouched(&self) {
        assert_eq!(
            fs::read_dir(&self.0).unwrap().count(),
            ForeignFolder::NAMES.len()
        );
        for name in ForeignFolder::NAMES {
            assert_eq!(fs::read(self.0.join(name)).unwrap(), b"precious", "{name}");
        }
    }
}
