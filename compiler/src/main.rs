//! The binary `htc`: parses the command line, executes it and returns an exit code.

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind as ParseErrorKind;
use htc::ErrorKind;
use htc::app::cli::Cli;
use htc::app::commands::{self, Task};

fn main() -> ExitCode {
    if let Err(error) = htc_formats::map::install_sigbus_handler("htc") {
        commands::print_error(&format!(
            "warning: files that are lost will not be named: {error}"
        ));
    }
    htc_formats::map::ignore_file_size_signal();
    match Cli::try_parse() {
        Ok(cli) => {
            let task = Task::from_command(&cli.command);
            let Err(failure) = commands::execute(cli.command) else {
                return ExitCode::SUCCESS;
            };
            for detail in failure.details() {
                commands::print_error(&detail);
            }
            commands::print_error(&failure.message(&task));
            ExitCode::from(failure.kind().exit_code())
        }
        Err(error) => match error.kind() {
            ParseErrorKind::DisplayHelp => error.exit(),
            ParseErrorKind::DisplayVersion => commands::print_version(),
            ParseErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
                let _ = error.print();
                ExitCode::from(ErrorKind::Usage.exit_code())
            }
            _ => {
                commands::print_error(&commands::one_line(&error.to_string()));
                ExitCode::from(ErrorKind::Usage.exit_code())
            }
        },
    }
}
