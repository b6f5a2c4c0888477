//! How the daemon is started, configured, reloaded and placed, which clients it takes, and how they wait.

mod admin_protocol;
mod attach_refusals;
mod choices;
mod config_file;
mod config_memory;
mod config_users;
mod disk_limits;
mod disks_at_run_time;
mod event_loop;
mod example;
mod fatal;
mod hostile_control;
mod moves;
mod placement;
mod rates;
mod refused_changes;
mod reload;
mod service_manager;
mod sockets;
mod start_refusals;
mod users;
mod visible;
mod waiting;
