//! `htc verify`.

use serde::Serialize;

use super::{Failure, Opened, open_container, print_json};
use crate::cli::FileArgs;
use crate::report::bytes_for_people;

#[derive(Serialize)]
struct Outcome {
    ok: bool,
    items: usize,
    bytes: u64,
    damaged: Vec<Damage>,
}

#[derive(Serialize)]
struct Damage {
    item: String,
    fault: String,
}

pub(super) fn execute(args: &FileArgs) -> Result<(), Failure> {
    let artifact = match open_container(&args.file) {
        Ok(Opened::Htz(artifact)) => artifact,
        Ok(Opened::Gguf(_) | Opened::Folder(_)) => {
            return Err(Failure::NoDigests(args.file.clone()));
        }
        Err(Failure::Htz(fault)) => {
            // Too damaged to open: a program that reads the JSON is told so, too.
            if args.json {
                print_json(&Outcome {
                    ok: false,
                    items: 0,
                    bytes: 0,
                    damaged: vec![Damage {
                        item: "header or manifest".into(),
                        fault: fault.to_string(),
                    }],
                })?;
            }
            return Err(fault.into());
        }
        Err(failure) => return Err(failure),
    };
    let mut outcome = Outcome {
        ok: true,
        items: 0,
        bytes: 0,
        damaged: Vec::new(),
    };
    let result = artifact.verify_all(|item| {
        outcome.items += 1;
        outcome.bytes += item.bytes;
        if let Some(fault) = item.fault {
            outcome.damaged.push(Damage {
                item: item.item.to_owned(),
                fault: fault.to_string(),
            });
        }
    });
    outcome.ok = outcome.damaged.is_empty();
    if args.json {
        print_json(&outcome)?;
    }
    match result {
        Err(first) => Err(Failure::Damaged {
            path: args.file.clone(),
            faults: outcome.damaged.len(),
            items: outcome.items,
            first,
        }),
        Ok(()) => {
            say!(
                "{}: undamaged: header, manifest and {} parts ({}) equal their digests",
                args.file.display(),
                outcome.items,
                bytes_for_people(outcome.bytes)
            );
            Ok(())
        }
    }
}
