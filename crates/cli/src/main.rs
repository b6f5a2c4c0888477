//! `fipsee`: look at, copy and measure disks served over Fip-see channels.
//!
//! One file or folder per subcommand; this file only reads the command line.

mod admin;
mod attach;
mod bench;
mod completion;
mod config;
mod cp;
mod demo;
mod disk;
mod doctor;
mod error;
mod examples;
mod generate;
mod info;
mod interrupt;
mod limit;
mod ls;
mod mount;
mod names;
mod net;
mod no_daemon;
mod notify;
mod output;
mod ping;
mod process;
mod reload;
mod resize;
mod serve;
mod stat;
mod top;
mod topology;
mod units;
mod vm_args;
mod wait;
mod workers;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use fipsee_block::client::default_socket_path;
use fipsee_block::disk::spec::parse_size;

use crate::error::Error;

/// Look at, copy, mount and measure the disks of a Fip-see daemon, and administer its disks and networks.
#[derive(Debug, Parser)]
#[command(name = "fipsee", version = fipsee_daemon::VERSION, about, max_term_width = 110)]
struct Cli {
    /// The daemon's socket [default: $FIPSEE_SOCKET, then your own daemon's, then /run/fipsee/fipsee.sock]
    #[arg(long, global = true, value_name = "SOCKET")]
    connect: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// See it work: start a daemon, write and verify data, compare with a Unix socket
    Demo(demo::Arguments),
    /// Check machine, configuration and daemon, and say what to change
    Doctor(doctor::Arguments),
    /// List the daemon's disks
    Ls(ls::Arguments),
    /// Describe a disk and its clients
    Info(info::Arguments),
    /// Show what queues and workers have done
    Stat(stat::Arguments),
    /// Watch what disks, clients, queues and workers do
    Top(top::Arguments),
    /// Wait until the daemon answers, and serves a disk
    Wait(wait::Arguments),
    /// Add, remove or change a disk of the running daemon
    #[command(subcommand)]
    Disk(disk::Command),
    /// Show or change how much a disk, port, user, group or client may do per second, and weights
    Limit(limit::Arguments),
    /// List, describe and test networks and their ports
    #[command(subcommand)]
    Net(net::Command),
    /// Show the configuration of the running daemon
    #[command(subcommand)]
    Config(config::Command),
    /// Set or show when sleeping clients and guests of a disk are notified of completions
    Notify(notify::Arguments),
    /// Change the size of a disk
    Resize(resize::Arguments),
    /// Serve a disk to virtual machines at a Unix socket, as a vhost-user-blk device
    Attach(attach::AttachArguments),
    /// Remove a vhost-user socket of a disk
    Detach(attach::DetachArguments),
    /// Print the options that give a disk to a virtual machine
    VmArgs(vm_args::Arguments),
    /// Have the daemon read its configuration file again: disks, who may use them, limits, log level
    Reload(reload::Arguments),
    /// Show the workers and how busy they are, or set how many serve
    Workers(workers::Arguments),
    /// Copy a file to a disk, a disk to a file, or a disk to a disk
    Cp(cp::Arguments),
    /// Serve a disk as a file, through FUSE, to programs that know only files
    Mount(mount::Arguments),
    /// Put load on a disk and measure it
    Bench(bench::Arguments),
    /// Measure the ring alone: bursts of messages between two processes, no daemon
    Ping(ping::Arguments),
    /// Show the machine's CPUs, measure what moving a cache line between them costs, recommend where workers and clients run
    Topology(topology::Arguments),
    /// Serve disks exactly as fipseed does
    #[command(hide = true)]
    Serve(Box<serve::Arguments>),
    /// Write manual pages and completions
    #[command(hide = true)]
    Generate(generate::Arguments),
    /// The second process of `demo`
    #[command(hide = true)]
    DemoDaemon(demo::DaemonArguments),
    /// The second process of `ping`
    #[command(hide = true)]
    PingPeer(ping::PeerArguments),
}

fn main() -> ExitCode {
    completion::answer();
    let cli = read_command_line();
    match run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(error.exit_code())
        }
    }
}

fn read_command_line() -> Cli {
    let mut command = numbers_may_be_negative(Cli::command());
    let matches = command.try_get_matches_from_mut(std::env::args_os()).unwrap_or_else(|error| refuse(&error));
    Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}

/// clap takes a negative size for an option.
fn refuse(error: &clap::Error) -> ! {
    let is_size = |word: &String| word.strip_prefix('-').is_some_and(|size| parse_size(size).is_ok());
    let size = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok()).find(is_size);
    match size.filter(|_| error.kind() == ErrorKind::UnknownArgument) {
        Some(size) => eprintln!("error: '{size}' is negative; write a size without a sign"),
        None => error.exit(),
    }
    std::process::exit(2)
}

/// A negative number is a value, whose error says what the option takes, and not an unknown option.
fn numbers_may_be_negative(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|argument| {
        let takes_values = argument.get_action().takes_values();
        argument.allow_negative_numbers(takes_values)
    });
    command.mut_subcommands(numbers_may_be_negative)
}

fn run(cli: Cli) -> Result<(), Error> {
    cli.connect.iter().try_for_each(|path| no_daemon::check_socket(path))?;
    let is_named = cli.connect.is_some() || std::env::var_os("FIPSEE_SOCKET").is_some();
    let socket = cli.connect.clone().unwrap_or_else(default_socket_path);
    match cli.command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Doctor(arguments) => doctor::run(&socket, is_named, &arguments),
        Command::Ls(arguments) => ls::run(&socket, &arguments),
        Command::Info(arguments) => info::run(&socket, &arguments),
        Command::Stat(arguments) => stat::run(&socket, &arguments),
        Command::Top(arguments) => top::run(&socket, &arguments),
        Command::Wait(arguments) => wait::run(cli.connect.as_deref(), &arguments),
        Command::Disk(command) => disk::run(&socket, &command),
        Command::Limit(arguments) => limit::run(&socket, &arguments),
        Command::Net(command) => net::run(&socket, &command),
        Command::Config(command) => config::run(&socket, &command),
        Command::Notify(arguments) => notify::run(&socket, &arguments),
        Command::Resize(arguments) => resize::run(&socket, &arguments),
        Command::Attach(arguments) => attach::attach(&socket, &arguments),
        Command::Detach(arguments) => attach::detach(&socket, &arguments),
        Command::VmArgs(arguments) => vm_args::run(&socket, &arguments),
        Command::Reload(arguments) => reload::run(&socket, &arguments),
        Command::Workers(arguments) => workers::run(&socket, &arguments),
        Command::Cp(arguments) => cp::run(&socket, &arguments),
        Command::Mount(arguments) => mount::run(&socket, &arguments),
        Command::Bench(arguments) => bench::run(&socket, &arguments),
        Command::Ping(arguments) => ping::run(&arguments),
        Command::Topology(arguments) => topology::run(&arguments),
        Command::Serve(arguments) => serve::run(*arguments),
        Command::Generate(arguments) => generate::run(&arguments),
        Command::DemoDaemon(arguments) => demo::run_daemon(&arguments),
        Command::PingPeer(arguments) => ping::run_peer(&arguments),
    }
}
