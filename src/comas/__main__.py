from comas.cli.main import main

main()
