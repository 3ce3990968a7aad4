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
                eprintln!("htc: error: {}", commands::bounded(&failure.to_string()));
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
                let message = commands::one_line(&error.to_string());
                eprintln!("htc: {}", commands::bounded(&message));
                ExitCode::from(commands::USAGE)
            }
        },
    }
}
