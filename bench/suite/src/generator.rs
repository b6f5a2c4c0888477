//! The load generator of `fipsee bench`, as the suites use it.

use std::path::Path;
use std::time::Duration;

use fipsee::cpus::CpuChoice;
use fipsee::load::{self, DataPath, Mix, Settings};
use fipsee_block::client::Claim;
use fipsee_measure::machine;
use fipsee_ring::wait::WaitMode;

use crate::matrix::{Cell, SHALLOW};

/// The same numbers in every run, at the cost of two instructions.
pub(crate) struct Random(pub(crate) u64);

impl Default for Random {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15)
    }
}

impl Random {
    #[inline(always)]
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 32) * bound) >> 32
    }

    pub(crate) fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.below(bound as u64)).unwrap_or(0)
    }
}

/// One queue under `cell`, with memory of the client's own that the daemon maps.
pub(crate) fn settings(socket: &Path, disk: &str, cell: Cell, seconds: f64, cpus: CpuChoice) -> Settings {
    Settings {
        socket: socket.to_owned(),
        disk: disk.to_owned(),
        // Daemons of earlier releases know none.
        claim: Claim::None,
        mix: if cell.write { Mix::RandWrite } else { Mix::RandRead },
        block_bytes: cell.block_bytes,
        depth: cell.depth,
        queues: 1,
        duration: Duration::from_secs_f64(seconds),
        wait: WaitMode::Adaptive,
        notify: None,
        data_path: DataPath::Memshare,
        cpus,
        verify: false,
        range_bytes: (0, 0),
    }
}

/// Write a whole disk of `disk_bytes`: untouched memory and holes read faster than data.
pub(crate) fn fill(socket: &Path, disk: &str, disk_bytes: u64) -> Result<(), String> {
    let cell = Cell { block_bytes: 1 << 20, depth: 8, ..SHALLOW };
    let mut settings = settings(socket, disk, cell, 0.01, CpuChoice::Auto);
    settings.mix = Mix::Write;
    let mut written = 0;
    // The generator writes in sequence from the start; go on until the whole disk has been written.
    while written < 2 * disk_bytes {
        settings.duration *= 2;
        written = load::run(&settings).map_err(|error| error.to_string())?.requests << 20;
    }
    Ok(())
}

/// What kind of file system holds `path`, as stat(1) names it.
pub(crate) fn file_system(path: &Path) -> String {
    machine::first_line("stat", &["--file-system", "--format=%T", &path.to_string_lossy()])
}
