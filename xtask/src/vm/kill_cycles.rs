//! A machine that is killed again and again, and the disk that it leaves to the next one.

use std::io::Write;
use std::process::Command;
use std::time::Duration;

use super::back_end::BackEnd;
use super::kills::Kills;
use super::machine::{self, Next, Outcome};
use super::unready::Unready;

/// More than any machine asks for before it is killed.
const WITHOUT_END: u32 = 1_000_000;
/// Writes of a machine have numbers above this one's multiple: it makes fewer.
const WRITES: u64 = 1 << 20;

/// What all runs have in common.
pub(super) struct KillCycles<'a> {
    /// So many runs end by a kill; one more ends in order.
    pub(super) killed_runs: u32,
    /// Of each.
    pub(super) limit: Duration,
    /// Alarms of the guest's kernel that are expected.
    pub(super) allowed: &'a [&'a str],
    pub(super) back_end: &'a BackEnd,
}

impl KillCycles<'_> {
    /// Run the machine that `command` makes of further words of its kernel's command line; how the last one ended.
    pub(super) fn run(
        &self,
        command: impl Fn(&str) -> Result<Command, Unready>,
        console: &mut dyn Write,
        kills: &mut Kills,
    ) -> Result<Outcome, Unready> {
        for run in 1.. {
            let is_killed = run <= self.killed_runs;
            let asks = if is_killed { WITHOUT_END } else { 0 };
            let first = u64::from(run) * WRITES;
            let mut command = command(&format!("fip.kills={asks} fip.first={first}"))?;
            let next = |event: &str| Ok(if is_killed && event == "kill" { Next::IsKilled } else { Next::GoesOn });
            let mut outcome = machine::run(&mut command, self.limit, console, next)?;
            let story = receive(&outcome, kills);
            if !is_killed {
                outcome.host_error = outcome.host_error.or(story.err());
                return Ok(outcome);
            }
            let verdict = story
                .and_then(|()| outcome.judge_killed(self.allowed))
                .and_then(|()| self.back_end.await_release(run as usize))
                .and_then(|()| kills.check_after_machine_kill(&self.back_end.image(), first));
            if let Err(error) = verdict {
                outcome.host_error = Some(format!("machine {run}: {error}"));
                return Ok(outcome);
            }
        }
        unreachable!("the last run ends in order")
    }
}

/// All that a machine reported before it ended, in order.
fn receive(outcome: &Outcome, kills: &mut Kills) -> Result<(), String> {
    for event in outcome.reports.iter().filter_map(|report| report.strip_prefix("event ")) {
        if event != "kill" && !kills.receive(event)? {
            return Err(format!("this scenario does not expect the event '{event}'"));
        }
    }
    Ok(())
}
