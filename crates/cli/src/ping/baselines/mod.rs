//! The baselines of the channel; none of them is in the product.

pub(super) mod bare;
pub(super) mod classic;
pub(super) mod floor;
