//! How the ranges of a transfer are cut into requests.

use fipsee_block::client::transfer::{Piece, Pieces};

fn cut(disk_offsets: &[u64], range_bytes: u64, piece_bytes: u64) -> Vec<Piece> {
    let mut pieces = Pieces::new(disk_offsets.len(), range_bytes, piece_bytes);
    let cut = std::iter::from_fn(|| pieces.next(disk_offsets)).collect();
    assert!(pieces.is_over());
    cut
}

#[test]
fn pieces_cover_each_range_once() {
    assert_eq!(cut(&[512], 0, 1024), []);
    assert_eq!(cut(&[], 512, 1024), []);
    let places = |pieces: Vec<Piece>| -> Vec<_> {
        pieces.into_iter().map(|piece| (piece.index, piece.start_bytes, piece.offset_bytes, piece.length_bytes)).collect()
    };
    assert_eq!(places(cut(&[512], 2488, 1024)), [(0, 0, 512, 1024), (0, 1024, 1536, 1024), (0, 2048, 2560, 440)]);
    let several = [(0, 0, 4096, 1024), (0, 1024, 5120, 512), (1, 1536, 0, 1024), (1, 2560, 1024, 512)];
    assert_eq!(places(cut(&[4096, 0], 1536, 1024)), several);
    assert_eq!(places(cut(&[u64::MAX - 511], 1024, 512)).last(), Some(&(0, 512, u64::MAX, 512)), "the daemon refuses it");
}
