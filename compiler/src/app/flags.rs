//! Option names in messages: translates builder methods of the library to command line options.

use std::collections::BTreeSet;

use clap::CommandFactory;

use crate::app::cli::Cli;

const RENAMED_OPTIONS: [(&str, &str); 7] = [
    ("output", "-o"),
    ("overwrite", "--force"),
    ("kernels", "--cuda-arch"),
    ("file_size", "--target-size"),
    ("bits", "--bpw"),
    ("context", "--calibration-context"),
    ("as", "--type"),
];

/// Replaces builder methods in backticks by options: `` `rank_cap` 4 `` becomes `--rank-cap 4`.
pub fn with_option_names(message: &str) -> String {
    let options = options();
    let mut typed = String::with_capacity(message.len());
    let mut rest = message;
    while let Some((before, from)) = rest.split_once('`') {
        typed.push_str(before);
        let Some((name, behind)) = from.split_once('`') else {
            rest = &rest[before.len()..];
            break;
        };
        match option_name(name, &options) {
            Some(option) => {
                typed.push_str(&option);
                rest = behind;
            }
            // The closing backtick may open the next quotation.
            None => {
                typed.push('`');
                rest = from;
            }
        }
    }
    typed + rest
}

fn option_name(method: &str, options: &BTreeSet<String>) -> Option<String> {
    if let Some((_, option)) = RENAMED_OPTIONS.iter().find(|(name, _)| *name == method) {
        return Some((*option).to_owned());
    }
    let long = method.replace('_', "-");
    (!method.contains('-') && options.contains(&long)).then(|| format!("--{long}"))
}

fn options() -> BTreeSet<String> {
    let command = Cli::command();
    let commands = command.get_subcommands();
    let arguments = commands.flat_map(|command| command.get_arguments());
    arguments
        .filter_map(|a| a.get_long().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests;
