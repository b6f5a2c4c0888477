//! The old daemon's side: it serves until it has received `Taken`, and continues to serve if that does not come.

use std::mem::replace;
use std::time::Duration;

use super::{Answer, LineError, PREPARE_TIMEOUT, TAKE_TIMEOUT};

/// What the giving daemon is to do next.
#[derive(Debug, PartialEq, Eq)]
pub enum GivingStep {
    /// Send what can go while clients are served, and `Prepare`. It and the answer have this long, from now on.
    Share(Duration),
    /// Report what is received, or what keeps it from that, before the time is over.
    Receive,
    /// Have every conversation rest in which clients change what they have.
    Hold,
    /// Have the workers quiesce.
    Quiesce,
    /// Send what all clients hold, and `End`. It and the answer have so long, from now on.
    Give(Duration),
    /// Shut the line down for reading, so that nothing is sent to it any more; report a packet that was received before, or that
    /// there is none.
    Withdraw,
    /// Send the other daemon the refusal, and serve on.
    Resume(String),
    /// Leave everything as it is and end: the other daemon serves.
    Leave,
}

#[derive(Debug)]
enum Stage {
    Sharing,
    Preparing,
    Holding,
    Quiescing,
    Giving,
    Deciding,
    /// For this reason; was the other one asked to decide?
    Withdrawing(String, bool),
    Over,
}

#[derive(Debug)]
pub struct Giving(Stage);

impl Giving {
    /// Another daemon has asked, and may.
    pub const fn begin() -> (Self, GivingStep) {
        (Self(Stage::Sharing), GivingStep::Share(PREPARE_TIMEOUT))
    }

    /// The last step is done, or not, for this reason: `End` was not sent, for one.
    pub fn done(&mut self, done: Result<(), String>) -> GivingStep {
        if let Err(reason) = done {
            return self.withdraw(reason);
        }
        let (stage, step) = match replace(&mut self.0, Stage::Over) {
            Stage::Sharing => (Stage::Preparing, GivingStep::Receive),
            Stage::Holding => (Stage::Quiescing, GivingStep::Quiesce),
            Stage::Quiescing => (Stage::Giving, GivingStep::Give(TAKE_TIMEOUT)),
            Stage::Giving => (Stage::Deciding, GivingStep::Receive),
            other => (other, GivingStep::Receive),
        };
        self.0 = stage;
        step
    }

    /// An answer was received, or will not be.
    pub fn received(&mut self, answer: Result<Answer, LineError>) -> GivingStep {
        match (replace(&mut self.0, Stage::Over), answer) {
            (Stage::Preparing, Ok(Answer::Prepared {})) => {
                self.0 = Stage::Holding;
                GivingStep::Hold
            }
            // Even after an error here: the other daemon has everything, and has said that it serves.
            (Stage::Deciding | Stage::Withdrawing(_, true), Ok(Answer::Taken {})) => GivingStep::Leave,
            (Stage::Withdrawing(reason, _), Err(LineError::Ended | LineError::TimedOut)) => GivingStep::Resume(reason),
            (Stage::Withdrawing(reason, decides), _) => {
                self.0 = Stage::Withdrawing(reason, decides);
                GivingStep::Withdraw
            }
            (stage, answer) => {
                let what = if matches!(stage, Stage::Deciding) { "it took over" } else { "it was prepared" };
                self.0 = stage;
                self.withdraw(match answer {
                    Ok(Answer::Refused { reason }) => format!("the other daemon refuses: {reason}"),
                    Ok(_) => "the other daemon answered out of order".to_owned(),
                    Err(error) => error.describe(what),
                })
            }
        }
    }

    fn withdraw(&mut self, reason: String) -> GivingStep {
        let decides = matches!(self.0, Stage::Deciding | Stage::Withdrawing(_, true));
        self.0 = Stage::Withdrawing(reason, decides);
        GivingStep::Withdraw
    }
}
