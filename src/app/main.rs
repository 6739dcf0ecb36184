//! The program: a window without arguments, a command line with them.

use std::process::ExitCode;

fn main() -> ExitCode {
    myna::cli::run(myna::app::open)
}
