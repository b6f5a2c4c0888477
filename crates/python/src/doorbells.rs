//! `fipsee.DoorbellCounts`: how often the two ends of a queue woke each other.

use fipsee_ring::doorbell::DoorbellCounts as Counts;
use pyo3::prelude::*;

/// How often a program and the daemon woke each other, since the disk or port was opened.
#[pyclass(frozen, module = "fipsee")]
pub(crate) struct DoorbellCounts(Counts);

impl From<Counts> for DoorbellCounts {
    fn from(counts: Counts) -> Self {
        Self(counts)
    }
}

#[pymethods]
impl DoorbellCounts {
    /// Times that the daemon slept and was woken.
    #[getter]
    const fn doorbells(&self) -> u64 {
        self.0.doorbells
    }

    /// Times that it slept and was not woken, because of `notify`.
    #[getter]
    const fn suppressed(&self) -> u64 {
        self.0.suppressed
    }

    /// Times that the program's doorbell was found rung.
    #[getter]
    const fn wakeups(&self) -> u64 {
        self.0.wakeups
    }

    /// Of these, times that there was no completion or frame.
    #[getter]
    const fn spurious(&self) -> u64 {
        self.0.spurious
    }

    fn __repr__(&self) -> String {
        let Counts { doorbells, suppressed, wakeups, spurious } = self.0;
        format!("<fipsee.DoorbellCounts doorbells={doorbells} suppressed={suppressed} wakeups={wakeups} spurious={spurious}>")
    }
}
