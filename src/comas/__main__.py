from comas.cli.entry import main

main()
