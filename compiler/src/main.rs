//! The binary `htc`: from what was typed to an exit code.

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use htc::cli::Cli;
use htc::commands;

fn main() -> ExitCode {
    match Cli::try_parse() {
        Ok(cli) => match commands::execute(cli.command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                eprintln!("htc: error: {failure}");
                ExitCode::from(failure.exit_code())
            }
        },
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                eprint!("{error}");
                ExitCode::from(commands::USAGE)
            }
            _ => {
                eprintln!("htc: {}", commands::one_line(&error.to_string()));
                ExitCode::from(commands::USAGE)
            }
        },
    }
}
