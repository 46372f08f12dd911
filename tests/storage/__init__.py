"""A run's folder: sealed, rewound, believed no further than it can be checked."""
