//! What is measured of every way to a disk: block sizes, reads and writes, one and many requests in flight.

use std::fmt;

/// One kind of random load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cell {
    pub(crate) block_bytes: u64,
    pub(crate) write: bool,
    /// Requests in flight.
    pub(crate) depth: u32,
}

/// The loads that claims are about, first.
pub(crate) const CELLS: [Cell; 8] = [
    SHALLOW,
    DEEP,
    Cell { write: true, ..SHALLOW },
    Cell { write: true, ..DEEP },
    Cell { block_bytes: 512, ..SHALLOW },
    Cell { block_bytes: 512, ..DEEP },
    Cell { block_bytes: 512, write: true, ..SHALLOW },
    Cell { block_bytes: 512, write: true, ..DEEP },
];

/// 4 KiB reads, one at a time.
pub(crate) const SHALLOW: Cell = Cell { block_bytes: 4096, write: false, depth: 1 };
/// 4 KiB reads, 64 at a time.
pub(crate) const DEEP: Cell = Cell { depth: 64, ..SHALLOW };

impl Cell {
    pub(crate) const fn operation(self) -> &'static str {
        if self.write { "write" } else { "read" }
    }

    /// Do claims name it?
    pub(crate) fn is_claimed(self) -> bool {
        self == SHALLOW || self == DEEP
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = if self.block_bytes == 4096 { "4 KiB".to_owned() } else { format!("{} B", self.block_bytes) };
        write!(f, "{size} {} QD{}", self.operation(), self.depth)
    }
}

/// The name of one candidate of the matrix.
pub(crate) fn candidate(way: &str, cell: Cell) -> String {
    format!("{way}, {cell}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_load_is_there_once_and_has_its_own_name() {
        let mut names: Vec<String> = CELLS.iter().map(Cell::to_string).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 8, "{names:?}");
        assert_eq!(candidate("way", DEEP), "way, 4 KiB read QD64");
        assert_eq!(CELLS.iter().filter(|cell| cell.is_claimed()).count(), 2);
    }
}
