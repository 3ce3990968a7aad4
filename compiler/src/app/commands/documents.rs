//! `htc completions` and `htc man`.

use std::io;
use std::path::Path;

use clap::CommandFactory;

use super::{Failure, answered, check_output};
use crate::app::cli::{Cli, CompletionsArgs, ManArgs};
use crate::system::disk;
use crate::system::error::FileError;

pub(super) fn print_completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut visible_command(), "htc", &mut script);
    answered(io::Write::write_all(&mut io::stdout().lock(), &script))
}

pub(super) fn write_manual(args: &ManArgs) -> Result<(), Failure> {
    let pages = manual().map_err(FileError::write(&args.output))?;
    for (name, _) in &pages {
        check_output(&args.output.join(name), args.force)?;
    }
    for (name, page) in pages {
        write_page(&args.output.join(name), &page, args.force)?;
    }
    Ok(())
}

fn write_page(path: &Path, page: &str, replace: bool) -> Result<(), Failure> {
    Ok(disk::write(path, page, replace)?)
}

/// Returns the command line without hidden commands.
fn visible_command() -> clap::Command {
    let command = Cli::command();
    let visible = command
        .get_subcommands()
        .filter(|command| !command.is_hide_set());
    let about = command.get_about().cloned().unwrap_or_default();
    clap::Command::new("htc")
        .about(about)
        .version(env!("CARGO_PKG_VERSION"))
        .subcommands(visible.cloned().collect::<Vec<_>>())
}

/// Returns the manual pages with their names: one of the program, and one of every command.
fn manual() -> io::Result<Vec<(String, String)>> {
    let mut program = visible_command().disable_help_subcommand(true);
    program.build();
    let mut commands = vec![(program.clone(), "htc".to_owned())];
    for command in program.get_subcommands() {
        let name = format!("htc-{}", command.get_name());
        let command = command.clone().display_name(&name);
        // Pages explain what the short help leaves out, too.
        let command = command.mut_args(|argument| argument.hide_short_help(false));
        commands.push((command, name));
    }
    let page = |(command, name): (clap::Command, String)| {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        let page = String::from_utf8(page).map_err(io::Error::other)?;
        Ok((format!("{name}.1"), page))
    };
    commands.into_iter().map(page).collect()
}
