//! The programs and libraries that ship, from Rust, C and Python.

mod c_library;
mod calls;
mod programs;
mod python;
