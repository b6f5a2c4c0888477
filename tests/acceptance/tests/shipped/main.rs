//! What ships, as users have it. One program of all tests: they wait for other programs most of the time, and do so beside each other.

mod container;
mod fio;
mod go;
mod guide;
mod libraries;
mod mistakes;
mod mount;
mod packages;
