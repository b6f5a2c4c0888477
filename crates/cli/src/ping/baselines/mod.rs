//! What the channel is compared with; none of it is in the product.

pub(super) mod bare;
pub(super) mod classic;
pub(super) mod floor;
