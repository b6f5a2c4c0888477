//! The machine's CPUs, what moving a cache line between them costs, and where pollers and clients should run.
//!
//! [`machine`] reads what the kernel says, [`measure`] measures what it does not say, [`cache`] keeps that for programs that
//! start later, and [`plan`] makes a recommendation from both. This crate knows nothing of disks, requests or configuration.

#![allow(missing_docs, reason = "a comment is where a name and a type do not say it")]

pub mod bounce;
pub mod cache;
pub mod choose;
pub mod cpu_list;
mod lines;
pub mod machine;
pub mod matrix;
pub mod measure;
pub mod near;
pub mod numa;
mod other_side;
pub mod payload;
pub mod pin;
pub mod plan;
