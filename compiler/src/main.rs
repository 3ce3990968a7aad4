//! The binary `htc`: parses the command line, executes it and returns an exit code.

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use htc::app::cli::Cli;
use htc::app::commands;

fn main() -> ExitCode {
    if let Err(error) = htc_formats::map::install_sigbus_handler("htc") {
        commands::print_error(&format!(
            "warning: files that are lost will not be named: {error}"
        ));
    }
    match Cli::try_parse() {
        Ok(cli) => match commands::execute(cli.command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                for detail in failure.details() {
                    commands::print_error(&detail);
                }
                commands::print_error(&format!("error: {}", failure.message()));
                ExitCode::from(failure.exit_code())
            }
        },
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => error.exit(),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                let _ = error.print();
                ExitCode::from(commands::USAGE)
            }
            _ => {
                commands::print_error(&commands::one_line(&error.to_string()));
                ExitCode::from(commands::USAGE)
            }
        },
    }
}
